"""The texts of files that a JVM is started with. Pure."""

from __future__ import annotations

from collections.abc import Iterable

_LOG_CONTEXTS = ("-Dlog4j2.contextSelector=", "-DLog4jContextSelector=")

ONE_LOG_CONTEXT = f"{_LOG_CONTEXTS[0]}org.apache.logging.log4j.core.selector.BasicContextSelector"
"""One context of loggers for a whole JVM. By default Log4j walks the stack whenever somebody asks for a logger, to find
whose context it is; Spark asks for one for each of its objects that logs, and all of them are in one context anyway.
"""


def argument_file(arguments: Iterable[str]) -> str:
    """A Java argument file: one quoted argument a line."""
    return "".join(f'"{_escaped(argument)}"\n' for argument in arguments)


def _escaped(argument: str) -> str:
    for plain, escape in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"), ("\f", "\\f")):
        argument = argument.replace(plain, escape)
    return argument


def log_configuration(level: str) -> str:
    """Log4j's configuration: ``level`` and above to standard error, in the layout of Spark's own."""
    return f"""\
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{yy/MM/dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
# Said on every start of every process, and nothing to be done about it.
logger.hadoop.name = org.apache.hadoop.util.NativeCodeLoader
logger.hadoop.level = error
logger.objectstore.name = org.apache.hadoop.hive.metastore.RetryingHMSHandler
logger.objectstore.level = fatal
logger.functions.name = org.apache.hadoop.hive.ql.exec.FunctionRegistry
logger.functions.level = error
"""


def names_log_configuration(options: Iterable[str]) -> bool:
    """Whether a JVM with these options has a Log4j configuration of its own."""
    return any(word.startswith(("-Dlog4j2.configurationFile=", "-Dlog4j.configurationFile=")) for word in options)


def names_log_contexts(options: Iterable[str]) -> bool:
    """Whether these options say themselves how many contexts of loggers there are."""
    return any(word.startswith(_LOG_CONTEXTS) for word in options)
