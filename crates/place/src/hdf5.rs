//! HDF5: what the properties of a file that is about to be created tell of how it will lie.
//!
//! `H5Fcreate` comes to `open`, or to `MPI_File_open` with the communicator and the info object of its property list, and
//! there the file is made. What those do not see is kept for them meanwhile: how HDF5 aligns what is in the file, and
//! how large the members of a family of files are.

use std::cell::Cell;

/// What the file that this thread creates with HDF5 will be like.
#[derive(Clone, Copy, Default)]
struct Properties {
    alignment: Option<u64>,
    member: Option<u64>,
}

thread_local! {
    static PROPERTIES: Cell<Properties> = const { Cell::new(Properties { alignment: None, member: None }) };
}

fn properties() -> Properties {
    PROPERTIES.try_with(Cell::get).unwrap_or_default()
}

/// Where datasets begin in the file that HDF5 is creating: at multiples of this, if somebody asked for it.
pub(crate) fn alignment() -> Option<u64> {
    properties().alignment
}

/// How large the file will be that HDF5 is creating, if it is one of a family.
pub(crate) fn member() -> Option<u64> {
    properties().member
}

#[cfg(not(feature = "wrap"))]
mod behind {
    use super::{PROPERTIES, Properties};
    use crate::real::Real;
    use libc::{c_char, c_int, c_uint, c_void};

    /// An identifier of HDF5.
    type Id = i64;

    /// No property list: nothing was asked for.
    const DEFAULT: Id = 0;
    const FAILED: Id = -1;

    macro_rules! call {
        ($name:literal($($type:ty),*) -> $result:ty, $($argument:expr),*) => {{
            static REAL: Real = Real::new(concat!($name, "\0"));
            REAL.address().map(|real| {
                // SAFETY: HDF5's function of this name has this signature.
                unsafe {
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> $result>(real)($($argument),*)
                }
            })
        }};
    }

    /// What a property list tells. HDF5 complains aloud of what is asked in vain, so nothing is.
    fn told(list: Id) -> Properties {
        if list == DEFAULT {
            return Properties::default();
        }
        let (mut threshold, mut alignment, mut size) = (0_u64, 0_u64, 0_u64);
        let aligned = call!(
            "H5Pget_alignment"(Id, *mut u64, *mut u64) -> c_int,
            list, &raw mut threshold, &raw mut alignment
        );
        let driver = call!("H5Pget_driver"(Id) -> Id, list);
        let family = call!("H5FD_family_init"() -> Id,);
        let known = driver.is_some() && driver == family;
        let member = known.then(|| {
            call!(
                "H5Pget_fapl_family"(Id, *mut u64, *mut Id) -> c_int,
                list, &raw mut size, std::ptr::null_mut()
            )
        });
        Properties {
            alignment: aligned.filter(|&code| code >= 0 && alignment > 1).map(|_| alignment),
            member: member.flatten().filter(|&code| code >= 0 && size > 0).map(|_| size),
        }
    }

    /// HDF5's function of this name: what its property list tells is known to whoever makes the file.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    unsafe extern "C" fn H5Fcreate(name: *const c_char, flags: c_uint, creation: Id, access: Id) -> Id {
        let told = std::panic::catch_unwind(|| told(access)).unwrap_or_default();
        let _ = PROPERTIES.try_with(|known| known.set(told));
        let made = call!("H5Fcreate"(*const c_char, c_uint, Id, Id) -> Id, name, flags, creation, access);
        let _ = PROPERTIES.try_with(|known| known.set(Properties::default()));
        made.unwrap_or(FAILED)
    }
}
