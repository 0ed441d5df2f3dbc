//! How the system calls of a program reach Forebay: through the preload library, or, for programs that cannot
//! load it, through a private mount.

mod private;
mod reach;
mod shared;

pub(crate) use private::{MOUNTED_VARIABLE, PrivateView};
pub(crate) use reach::{Reach, reach};
pub(crate) use shared::{Registry, Scaffold, announce, wait_until_unused};
