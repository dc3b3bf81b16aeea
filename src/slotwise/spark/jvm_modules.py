"""What Spark needs of Java's module system. Pure: no I/O."""

from __future__ import annotations

_OPENED_PACKAGES = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.nio.fs",
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)
"""What Spark 4.0 to 4.3 opens (org.apache.spark.launcher.JavaModuleOptions), and sun.nio.fs for WarmJvm."""


def module_options(java_major: int) -> list[str]:
    """What Spark needs of Java's module system, by the version of Java.

    Spark also adds the incubating vector module. It is left out: some runtimes lack it and then do not start at all,
    the others print a warning on every start, and only MLlib's linear algebra is faster with it. Who wants it writes
    ``--add-modules=jdk.incubator.vector`` into the extra Java options.
    """
    options = [f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED_PACKAGES]
    if java_major < 24:
        # Later ones do not have it and warn of it.
        options.append("--add-opens=java.base/sun.security.action=ALL-UNNAMED")
    options += ["-Djdk.reflect.useDirectMethodHandle=false", "-Dio.netty.tryReflectionSetAccessible=true"]
    options += ["-Dio.netty.allocator.type=pooled"]
    options += ["-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE"]
    if java_major >= 22:
        options.append("--enable-native-access=ALL-UNNAMED")
    if java_major >= 23:
        options.append("--sun-misc-unsafe-memory-access=allow")
    return options
