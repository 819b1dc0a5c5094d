//! Tier `vm`, from outside: the driver on several machines, called over its real sockets.
