//! HDF5: file properties that affect the layout.
//!
//! `H5Fcreate` calls `open`, or `MPI_File_open` with the communicator and the info object of its property
//! list, and these create the file. This module passes them what they do not see: the alignment of objects in
//! the file, and the size of the members of a file family.

use std::cell::Cell;

/// Properties of the file that this thread creates with HDF5.
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

/// Alignment of datasets in the file that HDF5 is creating, if requested.
pub(crate) fn alignment() -> Option<u64> {
    properties().alignment
}

/// Size of the file that HDF5 is creating, if it is a member of a family.
pub(crate) fn member() -> Option<u64> {
    properties().member
}

#[cfg(not(feature = "wrap"))]
mod interposed {
    use super::{PROPERTIES, Properties};
    use crate::real::Real;
    use libc::{c_char, c_int, c_uint, c_void};

    /// An HDF5 identifier.
    type Id = i64;

    /// The default property list.
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

    /// The properties of a list. HDF5 prints an error for a missing property, so only existing ones are read.
    fn read(list: Id) -> Properties {
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

    /// HDF5's function of this name; remembers the file's properties while HDF5 creates it.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    unsafe extern "C" fn H5Fcreate(name: *const c_char, flags: c_uint, creation: Id, access: Id) -> Id {
        let read = std::panic::catch_unwind(|| read(access)).unwrap_or_default();
        let _ = PROPERTIES.try_with(|known| known.set(read));
        let made = call!("H5Fcreate"(*const c_char, c_uint, Id, Id) -> Id, name, flags, creation, access);
        let _ = PROPERTIES.try_with(|known| known.set(Properties::default()));
        made.unwrap_or(FAILED)
    }
}
