//! The functions that the library replaces, by name: a missing one fails the test.

use crate::world::{World, succeed};
use std::collections::BTreeSet;
use std::process::Command;

/// Grouped by subject.
const TABLE: &[(&str, &str)] = &[
    (
        "open",
        "open open64 __open __open64 __open_2 __open64_2 openat openat64 __openat_2 __openat64_2 openat2 creat creat64 umask",
    ),
    ("close", "close __close close_range closefrom"),
    (
        "read and write",
        "read __read __read_chk write __write pread pread64 __pread64 __pread_chk __pread64_chk pwrite pwrite64 __pwrite64",
    ),
    ("vectors", "readv writev preadv preadv64 preadv2 preadv64v2 pwritev pwritev64 pwritev2 pwritev64v2"),
    ("offsets", "lseek lseek64 llseek __lseek"),
    ("syncing", "fsync fdatasync sync syncfs sync_file_range"),
    (
        "lengths",
        "truncate truncate64 ftruncate ftruncate64 fallocate fallocate64 posix_fallocate posix_fallocate64",
    ),
    ("advice", "posix_fadvise posix_fadvise64 readahead"),
    ("stat", "stat stat64 lstat lstat64 fstat fstat64 fstatat fstatat64 statx"),
    ("older stat", "__xstat __xstat64 __lxstat __lxstat64 __fxstat __fxstat64 __fxstatat __fxstatat64"),
    ("access", "access eaccess euidaccess faccessat"),
    (
        "file systems",
        "statfs statfs64 __statfs fstatfs fstatfs64 statvfs statvfs64 fstatvfs fstatvfs64 pathconf fpathconf",
    ),
    (
        "names",
        "mkdir mkdirat rmdir unlink unlinkat remove rename renameat renameat2 link linkat symlink symlinkat",
    ),
    ("links", "readlink readlinkat __readlink_chk __readlinkat_chk"),
    ("special files", "mkfifo mkfifoat mknod mknodat __xmknod __xmknodat"),
    (
        "listings",
        "opendir fdopendir closedir readdir readdir64 readdir_r readdir64_r rewinddir seekdir telldir dirfd",
    ),
    ("raw listings", "getdents64 getdirentries getdirentries64"),
    ("trees", "scandir scandir64 scandirat scandirat64 ftw ftw64 nftw nftw64 glob glob64"),
    ("working directory", "chdir fchdir getcwd __getcwd_chk getwd __getwd_chk get_current_dir_name"),
    ("real paths", "realpath __realpath_chk canonicalize_file_name ftok"),
    ("descriptors", "dup dup2 __dup2 dup3 fcntl fcntl64 __fcntl ioctl sendmsg sendmmsg recvmsg recvmmsg"),
    (
        "credentials",
        "setuid seteuid setreuid setresuid setfsuid setgid setegid setregid setresgid setfsgid setgroups initgroups",
    ),
    ("modes", "chmod lchmod fchmod fchmodat chown lchown fchown fchownat"),
    ("times", "utime utimes lutimes futimes futimesat utimensat futimens"),
    (
        "extended attributes",
        "getxattr lgetxattr fgetxattr setxattr lsetxattr fsetxattr listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr",
    ),
    (
        "asynchronous I/O",
        "io_submit io_uring_setup io_uring_queue_init io_uring_queue_init_params io_uring_queue_init_mem",
    ),
    ("sockets", "sendto"),
    ("copies", "sendfile sendfile64 copy_file_range splice vmsplice tee"),
    (
        "temporary names",
        "mkstemp mkstemp64 mkostemp mkostemp64 mkstemps mkstemps64 mkostemps mkostemps64 mkdtemp mktemp",
    ),
    ("streams", "fopen fopen64 fdopen freopen freopen64 dprintf vdprintf __dprintf_chk __vdprintf_chk"),
    ("memory", "mmap mmap64 munmap msync mremap mprotect"),
    (
        "asynchronous",
        "aio_read aio_read64 aio_write aio_write64 aio_fsync aio_fsync64 aio_cancel aio_cancel64 lio_listio lio_listio64",
    ),
    ("locks", "flock lockf lockf64"),
    ("programs", "execv execve execvp execvpe execveat fexecve execl execle execlp"),
    (
        "children",
        "fork __fork vfork __vfork clone __clone system popen daemon forkpty login_tty posix_spawn posix_spawnp",
    ),
    (
        "file actions",
        "posix_spawn_file_actions_addopen posix_spawn_file_actions_addchdir_np posix_spawn_file_actions_destroy",
    ),
    ("the end", "_exit _Exit quick_exit"),
    ("handlers", "sigaction __sigaction signal bsd_signal ssignal sysv_signal __sysv_signal sigset"),
    ("by number", "syscall"),
    ("libraries", "dlopen dlmopen dlsym"),
    (
        "refused",
        "inotify_add_watch fanotify_mark name_to_handle_at fts_open fts64_open chroot bind connect __connect",
    ),
    (
        "forebay.h",
        "fb_open fb_close fb_read fb_write fb_pread fb_pwrite fb_lseek fb_fsync fb_ftruncate fb_fstat fb_stat fb_mkdir fb_rmdir fb_unlink fb_rename fb_connect fb_version",
    ),
    ("our own descriptors", "socket socketpair epoll_create1 eventfd"),
    ("limits", "setrlimit setrlimit64 prlimit prlimit64"),
    ("waiting", "epoll_ctl"),
];

#[test]
fn library_replaces_exactly_these_functions() {
    let world = World::new();
    let mut tools = Command::new("nm");
    tools.args(["-D", "--defined-only"]).arg(world.library());
    let found = succeed(tools);
    let found: BTreeSet<&str> = found.lines().filter_map(|line| line.split_whitespace().last()).collect();
    let listed: Vec<&str> = TABLE.iter().flat_map(|(_, names)| names.split_whitespace()).collect();
    let wanted: BTreeSet<&str> = listed.iter().copied().collect();
    assert_eq!(wanted.len(), listed.len(), "a name is listed twice");
    assert_eq!(wanted.difference(&found).collect::<Vec<_>>(), [&""; 0], "not taken over");
    assert_eq!(found.difference(&wanted).collect::<Vec<_>>(), [&""; 0], "not in the table");
}
