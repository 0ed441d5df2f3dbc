//! MPI: ranks, and shared files that rank 0 creates before the other ranks open them.
//!
//! Handles are passed through unchanged: MPICH's are numbers, Open MPI's are addresses. The few constants
//! that are needed are known for MPICH and its derivatives, and looked up for Open MPI.

use crate::create::{concerns, create};
use crate::crew::{self, Crew, ROUND};
use crate::decide::FileHint;
use crate::real::Real;
use crate::{setting, turns};
use libc::{c_char, c_int, c_void};
use std::ffi::{CStr, CString};
use std::sync::OnceLock;

/// A communicator, an info object or a datatype.
type Handle = usize;

const SUCCESS: c_int = 0;
const FAILED: c_int = 16;
const MODE_CREATE: c_int = 1;
const MODE_RDONLY: c_int = 2;
const MODE_EXCL: c_int = 64;
/// Bytes of a node's name that the ranks exchange.
const NAME: usize = 64;

macro_rules! call {
    ($name:literal($($type:ty),*), $($argument:expr),*) => {{
        static REAL: Real = Real::new(concat!($name, "\0"));
        REAL.address().map_or(FAILED, |real| {
            // SAFETY: MPI's function of this name has this signature.
            unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> c_int>(real)($($argument),*) }
        })
    }};
}

/// The world communicator, the null info object, the character and integer types: objects in Open MPI,
/// numbers in MPICH.
macro_rules! constant {
    ($open_mpi:literal, $mpich:literal) => {{
        static OBJECT: Real = Real::object(concat!($open_mpi, "\0"));
        if is_open_mpi() { OBJECT.address().map_or(0, |address| address as Handle) } else { $mpich }
    }};
}

fn is_open_mpi() -> bool {
    static IS: OnceLock<bool> = OnceLock::new();
    static WORLD: Real = Real::object("ompi_mpi_comm_world\0");
    // The caller uses MPI, so its library is loaded.
    *IS.get_or_init(|| WORLD.address().is_some())
}

fn world() -> Handle {
    constant!("ompi_mpi_comm_world", 0x4400_0000)
}

fn rank_and_size(comm: Handle) -> Option<(c_int, c_int)> {
    let (mut rank, mut size) = (0, 0);
    let found = call!("PMPI_Comm_rank"(Handle, *mut c_int), comm, &raw mut rank) == SUCCESS
        && call!("PMPI_Comm_size"(Handle, *mut c_int), comm, &raw mut size) == SUCCESS;
    found.then_some((rank, size))
}

/// All ranks exchange the names of their nodes.
fn exchange_nodes() {
    let Some((rank, size)) = rank_and_size(world()).filter(|(_, size)| *size > 0) else { return };
    let mut mine = [0_u8; NAME];
    let host = crew::host();
    let length = host.len().min(NAME);
    mine[..length].copy_from_slice(&host.as_bytes()[..length]);
    let mut all = vec![0_u8; NAME * size as usize];
    let kind = constant!("ompi_mpi_char", 0x4c00_0101);
    let found = call!(
        "PMPI_Allgather"(*const u8, c_int, Handle, *mut u8, c_int, Handle, Handle),
        mine.as_ptr(),
        NAME as c_int,
        kind,
        all.as_mut_ptr(),
        NAME as c_int,
        kind,
        world()
    );
    let topology = setting::ready().map(|ready| &ready.topology);
    let client = |name: &[u8]| {
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(NAME);
        topology?.client(std::str::from_utf8(&name[..end]).ok()?)
    };
    let clients = match found {
        SUCCESS => all.chunks(NAME).map(client).collect(),
        _ => vec![None; size as usize],
    };
    // Rank 0 counts for all.
    let mut run = if rank == 0 { (turns::runs_before() % u64::from(ROUND)) as c_int } else { 0 };
    let kind = constant!("ompi_mpi_int", 0x4c00_0405);
    let found =
        call!("PMPI_Bcast"(*mut c_int, c_int, Handle, c_int, Handle), &raw mut run, 1, kind, 0, world());
    let run = if found == SUCCESS { u32::try_from(run).unwrap_or(0) } else { 0 };
    crew::set_from_mpi(Crew { rank: rank as u32, size: size as u32, clients, run });
}

/// Initialises MPI, then exchanges the nodes of all ranks.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn MPI_Init(argc: *mut c_int, argv: *mut c_void) -> c_int {
    let done = call!("MPI_Init"(*mut c_int, *mut c_void), argc, argv);
    if done == SUCCESS {
        let _ = std::panic::catch_unwind(exchange_nodes);
    }
    done
}

/// Initialises MPI with threads, then exchanges the nodes of all ranks.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn MPI_Init_thread(
    argc: *mut c_int,
    argv: *mut c_void,
    required: c_int,
    provided: *mut c_int,
) -> c_int {
    let done = call!(
        "MPI_Init_thread"(*mut c_int, *mut c_void, c_int, *mut c_int),
        argc,
        argv,
        required,
        provided
    );
    if done == SUCCESS {
        let _ = std::panic::catch_unwind(exchange_nodes);
    }
    done
}

/// The properties of a file from its info object.
fn hint(info: Handle, writers: c_int) -> FileHint {
    let mut hint =
        FileHint { writers: writers.max(1) as u32, source: "its communicator", ..FileHint::default() };
    let null = constant!("ompi_mpi_info_null", 0x1c00_0000);
    // An MPICH handle is an int; the upper half of the register is undefined.
    let is_null = if is_open_mpi() { info == null || info == 0 } else { info as u32 == null as u32 };
    if is_null {
        return hint;
    }
    hint.bytes = number(info, c"file_size").or_else(|| number(info, c"fileSize"));
    hint.stripe_count = number(info, c"striping_factor").and_then(|count| u32::try_from(count).ok());
    hint.stripe_size = number(info, c"striping_unit");
    if let Some(writers) = number(info, c"writers_per_file").and_then(|count| u32::try_from(count).ok()) {
        (hint.writers, hint.source) = (writers, "its info");
    }
    hint
}

fn number(info: Handle, key: &CStr) -> Option<u64> {
    let (mut text, mut flag) = ([0_u8; 64], 0);
    let got = call!(
        "PMPI_Info_get"(Handle, *const c_char, c_int, *mut u8, *mut c_int),
        info,
        key.as_ptr(),
        63,
        text.as_mut_ptr(),
        &raw mut flag
    );
    let text = CStr::from_bytes_until_nul(&text).ok()?.to_str().ok()?;
    (got == SUCCESS && flag != 0).then(|| text.trim().parse().ok()).flatten().filter(|&number| number > 0)
}

/// A file's name without ROMIO's prefix.
fn plain(name: &CStr) -> CString {
    let bytes = name.to_bytes();
    let kind = bytes.iter().position(|&byte| byte == b':').filter(|&at| !bytes[..at].contains(&b'/'));
    CString::new(&bytes[kind.map_or(0, |at| at + 1)..]).unwrap_or_default()
}

/// Rank 0 creates the file, and the others wait for it. Returns the mode with which all of them continue.
fn first(comm: Handle, name: &CStr, mode: c_int, info: Handle) -> c_int {
    if mode & MODE_CREATE == 0 {
        return mode;
    }
    let Some((rank, size)) = rank_and_size(comm) else { return mode };
    let mut made: c_int = 0;
    if rank == 0 {
        let name = plain(name);
        let flags = libc::O_CREAT | libc::O_CLOEXEC | if mode & MODE_RDONLY == 0 { libc::O_RDWR } else { 0 };
        if concerns(libc::AT_FDCWD, &name).is_some()
            && let Some(fd) = create(libc::AT_FDCWD, name.as_ptr(), flags, 0o666, hint(info, size))
        {
            // SAFETY: the descriptor is ours and not shared.
            unsafe { libc::close(fd) };
            made = 1;
        }
    }
    // Also where nothing was created: a rank without settings must not leave the others waiting.
    if size > 1 {
        let kind = constant!("ompi_mpi_int", 0x4c00_0405);
        let _ =
            call!("PMPI_Bcast"(*mut c_int, c_int, Handle, c_int, Handle), &raw mut made, 1, kind, 0, comm);
    }
    if made == 1 { mode & !MODE_EXCL } else { mode }
}

/// All ranks of a communicator open a file: rank 0 creates it first.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn MPI_File_open(
    comm: Handle,
    name: *const c_char,
    mode: c_int,
    info: Handle,
    file: *mut c_void,
) -> c_int {
    let new_mode = std::panic::catch_unwind(|| {
        // SAFETY: a NUL-terminated string, as MPI requires.
        if name.is_null() { mode } else { first(comm, unsafe { CStr::from_ptr(name) }, mode, info) }
    });
    let mode = new_mode.unwrap_or(mode);
    call!(
        "MPI_File_open"(Handle, *const c_char, c_int, Handle, *mut c_void),
        comm,
        name,
        mode,
        info,
        file
    )
}

/// Converts a Fortran handle.
fn handle(convert: &Real, number: c_int) -> Handle {
    match is_open_mpi().then(|| convert.address()).flatten() {
        // SAFETY: MPI's functions of these names take an integer and return a handle.
        Some(real) => unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> Handle>(real)(number)
        },
        None => number as Handle,
    }
}

type FortranOpen = unsafe extern "C" fn(
    *const c_int,
    *const c_char,
    *const c_int,
    *const c_int,
    *mut c_int,
    *mut c_int,
    usize,
);

macro_rules! fortran {
    ($($name:ident)*) => {$(
        /// The same from Fortran, whose library may not call the C function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C" fn $name(
            comm: *const c_int,
            name: *const c_char,
            mode: *const c_int,
            info: *const c_int,
            file: *mut c_int,
            error: *mut c_int,
            length: usize,
        ) {
            static REAL: Real = Real::new(concat!(stringify!($name), "\0"));
            let Some(real) = REAL.address() else { return };
            let new_mode = std::panic::catch_unwind(|| {
                // SAFETY: Fortran passes the addresses of its arguments, and the length of its string.
                unsafe {
                    let bytes = std::slice::from_raw_parts(name.cast::<u8>(), length);
                    let end = bytes.iter().rposition(|&byte| byte != b' ').map_or(0, |last| last + 1);
                    let name = CString::new(&bytes[..end]).unwrap_or_default();
                    static COMM: Real = Real::new("PMPI_Comm_f2c\0");
                    static INFO: Real = Real::new("PMPI_Info_f2c\0");
                    let (comm, info) = (handle(&COMM, *comm), handle(&INFO, *info));
                    first(comm, &name, *mode, info)
                }
            });
            // SAFETY: as above; the subroutine of this name has this signature.
            unsafe {
                let mode = new_mode.unwrap_or(*mode);
                std::mem::transmute::<*mut c_void, FortranOpen>(real)(comm, name, &raw const mode, info, file, error, length);
            }
        }
    )*};
}

fortran! { mpi_file_open_ mpi_file_open_f08_ }
