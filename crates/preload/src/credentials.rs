//! The credentials of the calling thread, and the functions that change credentials.
//!
//! Linux keeps credentials per thread. The C library's functions change those of all threads of a process, a raw system
//! call only those of the calling thread. Every possible change increments a counter, so a thread needs one comparison
//! to know whether the credentials it has read are still valid.
//!
//! **Invariant**: after any function or system call below has returned, no thread uses the credentials it had before. A
//! change by a system call that is not intercepted is noticed at the next change that is, and when connections are
//! made.

use crate::errno::{Errno, Outcome, Stop};
use crate::hook::{Real, failed};
use crate::kernel::{system_call, try_system_call};
use crate::{dispatch, engine, hook, process_state, quiet, table};
use forebay_model::{Gid, Identity, MAX_GROUPS, Uid};
use libc::{c_char, c_int, c_long, gid_t, size_t, uid_t};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

static CHANGES: AtomicU64 = AtomicU64::new(1);

/// Means "unchanged" in all these calls.
const KEEP: u32 = u32::MAX;

/// The credentials of a thread.
pub(crate) struct Credentials {
    /// The real, the effective and the saved user.
    pub(crate) users: [u32; 3],
    /// The real and the effective group.
    groups: [u32; 2],
    others: Vec<u32>,
    /// The identity used for file access.
    pub(crate) identity: Identity,
}

/// The identity under which connections are made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Origin {
    pub(crate) uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

/// How often credentials may have changed.
pub(crate) fn changes() -> u64 {
    CHANGES.load(Ordering::Acquire)
}

/// Records that credentials, or something derived from them, may have changed.
pub(crate) fn note_change() {
    CHANGES.fetch_add(1, Ordering::AcqRel);
}

fn identity_of(uid: u32, gid: u32, groups: &[u32]) -> Identity {
    let groups = groups.iter().filter(|&&group| group != gid).map(|&group| Gid(group)).collect();
    Identity { uid: Uid(uid), gid: Gid(gid), groups }
}

/// The three ids that `getresuid` or `getresgid` returns.
fn three(number: c_long) -> [u32; 3] {
    let mut ids = [0_u32; 3];
    let [one, two, three] = &mut ids;
    let args = [&raw mut *one as usize, &raw mut *two as usize, &raw mut *three as usize, 0, 0, 0];
    // SAFETY: the kernel writes three 32-bit numbers into `ids`.
    unsafe { system_call(number, args) };
    ids
}

/// The user or group for file access, returned by a change that the kernel refuses.
fn for_files(number: c_long) -> u32 {
    // SAFETY: the id is invalid, so nothing changes.
    unsafe { system_call(number, [KEEP as usize, 0, 0, 0, 0, 0]) as u32 }
}

impl Credentials {
    /// Reads the credentials of the calling thread.
    pub(crate) fn read() -> Credentials {
        let (users, [real, effective, _]) = (three(libc::SYS_getresuid), three(libc::SYS_getresgid));
        let others = rustix::process::getgroups().unwrap_or_default();
        let others: Vec<u32> = others.into_iter().map(rustix::process::Gid::as_raw).collect();
        let identity = identity_of(for_files(libc::SYS_setfsuid), for_files(libc::SYS_setfsgid), &others);
        Credentials { users, groups: [real, effective], others, identity }
    }

    /// Whether the thread is this user, or can become it again.
    pub(crate) fn includes(&self, uid: u32) -> bool {
        self.users.contains(&uid)
    }

    /// The identity used for file access.
    pub(crate) fn for_files(&self) -> Identity {
        self.identity.clone()
    }

    /// The identity that `eaccess` checks.
    pub(crate) fn effective(&self) -> Identity {
        identity_of(self.users[1], self.groups[1], &self.others)
    }

    /// The identity that `access` checks.
    pub(crate) fn real(&self) -> Identity {
        identity_of(self.users[0], self.groups[0], &self.others)
    }

    /// The identity under which a thread with these credentials connects: root while it can be root, since root may
    /// name all other users.
    pub(crate) fn origin(&self) -> Origin {
        let uid = if self.includes(0) { 0 } else { self.users[1] };
        Origin { uid, gid: self.groups[1], groups: self.others.clone() }
    }
}

impl Origin {
    pub(crate) fn identity(&self) -> Identity {
        identity_of(self.uid, self.gid, &self.groups)
    }

    fn is_in_groups_of(&self, now: &Credentials) -> bool {
        self.gid == now.groups[1] && self.groups == now.others
    }

    /// Runs `work` with these credentials, on a thread that can take them. All signals are blocked: the C library
    /// requires a change of users to succeed on all threads or on none, so such a change has to wait too.
    pub(crate) fn act(&self, work: &mut dyn FnMut()) -> io::Result<()> {
        let now = Credentials::read();
        if now.users[1] == self.uid && self.is_in_groups_of(&now) && now.identity == self.identity() {
            work();
            return Ok(());
        }
        quiet::with_all_signals_blocked(|| {
            let now = Credentials::read();
            let begun = self.take(&now);
            if begun.is_ok() {
                work();
            }
            self.give_back(&now);
            begun
        })
    }

    fn take(&self, now: &Credentials) -> io::Result<()> {
        if !self.is_in_groups_of(now) {
            set(libc::SYS_setresuid, [KEEP, 0, KEEP])?;
            set_groups(self.gid, &self.groups)?;
        }
        set(libc::SYS_setresuid, [KEEP, self.uid, KEEP])
    }

    /// A thread that could take the credentials can also return to its own.
    fn give_back(&self, now: &Credentials) {
        if !self.is_in_groups_of(now) {
            let _ = set(libc::SYS_setresuid, [KEEP, 0, KEEP]);
            let _ = set_groups(now.groups[1], &now.others);
        }
        let _ = set(libc::SYS_setresuid, [KEEP, now.users[1], KEEP]);
        if now.identity.uid.0 != now.users[1] || now.identity.gid.0 != now.groups[1] {
            let _ = set(libc::SYS_setfsuid, [now.identity.uid.0, 0, 0]);
            let _ = set(libc::SYS_setfsgid, [now.identity.gid.0, 0, 0]);
        }
    }
}

fn set(number: c_long, [a, b, c]: [u32; 3]) -> io::Result<()> {
    let args = [a as usize, b as usize, c as usize, 0, 0, 0];
    // SAFETY: the arguments are numbers; the call changes the credentials of this thread, as its callers intend.
    let done = unsafe { try_system_call(number, args) };
    done.map(drop).map_err(|errno| io::Error::from_raw_os_error(errno.0))
}

fn set_groups(effective: u32, others: &[u32]) -> io::Result<()> {
    set(libc::SYS_setresgid, [KEEP, effective, KEEP])?;
    // SAFETY: the kernel reads `others.len()` numbers.
    let done =
        unsafe { try_system_call(libc::SYS_setgroups, [others.len(), others.as_ptr() as usize, 0, 0, 0, 0]) };
    done.map(drop).map_err(|errno| io::Error::from_raw_os_error(errno.0))
}

/// Another thread of this process, as `/proc` shows it.
struct Other {
    /// Whether it is a thread of the library.
    is_internal: bool,
    users: String,
    /// Users, groups and capabilities, as text.
    rights: [String; 4],
}

fn task(dir: &Path) -> Option<Other> {
    let text = std::fs::read_to_string(dir.join("status")).ok()?;
    let field =
        |name| text.lines().find_map(|line| line.strip_prefix(name)).map(|rest| rest.trim().to_owned());
    let users = field("Uid:")?;
    let rights = [users.clone(), field("Gid:")?, field("Groups:")?, field("CapEff:")?];
    Some(Other { is_internal: field("Name:")? == engine::THREAD_NAME, users, rights })
}

/// All threads of this process but the calling one.
fn others() -> Vec<Other> {
    // One that has just been created looks like a thread of the program.
    engine::threads().into_iter().for_each(engine::Threads::wait_until_begun);
    let own = rustix::thread::gettid().as_raw_nonzero().to_string();
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    let others = tasks.flatten().filter(|task| task.file_name().as_encoded_bytes() != own.as_bytes());
    others.filter_map(|entry| task(&entry.path())).collect()
}

impl Other {
    fn includes(&self, uid: u32) -> bool {
        self.users.split_whitespace().flat_map(str::parse::<u32>).any(|user| user == uid)
    }
}

/// Whether another thread of the program is this user or can become it again. The library's own threads do not count.
pub(crate) fn others_include(uid: u32) -> bool {
    others().iter().any(|other| !other.is_internal && other.includes(uid))
}

/// Whether the program has only this thread, and the library's threads have other rights: capabilities change thread by
/// thread. The C library would attempt the change on all threads; if it succeeded only on some, it would end the
/// process.
fn is_alone_with_its_rights() -> bool {
    let others = others();
    let own = task(Path::new("/proc/thread-self"));
    !others.is_empty()
        && others.iter().all(|other| other.is_internal)
        && own.is_some_and(|own| others.iter().any(|other| other.rights != own.rights))
}

/// Before credentials change: a thread that is about to give up root permanently connects while it is root, if it has
/// open files to hand on.
fn before(next: impl FnOnce([u32; 3]) -> [u32; 3]) {
    if !process_state::is_set_up() || process_state::is_borrowed() || !table::has_files() {
        return;
    }
    let users = three(libc::SYS_getresuid);
    if users.contains(&0) && !next(users).contains(&0) {
        engine::connect_now();
    }
}

/// After credentials may have changed. `alone`: only this thread's have, so the library's threads are replaced by
/// threads with its rights.
fn after(alone: bool) {
    note_change();
    if engine::started().is_some() {
        if alone {
            engine::outdate();
        }
        engine::connect_now();
    }
}

fn but(new: u32, old: u32) -> u32 {
    if new == KEEP { old } else { new }
}

/// The users after `setuid`.
fn after_setuid(user: u32, [real, effective, saved]: [u32; 3]) -> [u32; 3] {
    if effective == 0 { [user; 3] } else { [real, user, saved] }
}

/// The users after `setreuid`.
fn after_setreuid([r, e]: [u32; 2], [real, effective, saved]: [u32; 3]) -> [u32; 3] {
    let next = but(e, effective);
    let saves = r != KEEP || (e != KEEP && e != real);
    [but(r, real), next, if saves { next } else { saved }]
}

/// The users after `setresuid`.
fn after_setresuid([r, e, s]: [u32; 3], [real, effective, saved]: [u32; 3]) -> [u32; 3] {
    [but(r, real), but(e, effective), but(s, saved)]
}

/// Changes the credentials of this thread alone, by a system call of the application.
pub(crate) fn by_number(number: c_long, args: [usize; 6]) -> Outcome<c_long> {
    let [a, b, c, ..] = args.map(|arg| arg as u32);
    match number {
        libc::SYS_setuid => before(|users| after_setuid(a, users)),
        libc::SYS_setreuid => before(|users| after_setreuid([a, b], users)),
        libc::SYS_setresuid => before(|users| after_setresuid([a, b, c], users)),
        libc::SYS_setgid
        | libc::SYS_setregid
        | libc::SYS_setresgid
        | libc::SYS_setgroups
        | libc::SYS_setfsuid
        | libc::SYS_setfsgid => {}
        _ => return Err(Stop::Foreign),
    }
    // SAFETY: the application's own call.
    let done = unsafe { try_system_call(number, args) };
    after(false);
    Ok(done? as c_long)
}

/// Changes credentials of this thread alone.
fn change(number: c_long, args: [u32; 3]) -> c_int {
    match set(number, args) {
        Ok(()) => 0,
        Err(error) => failed(Errno(error.raw_os_error().unwrap_or(libc::EPERM))),
    }
}

/// As [`change`], for `setgroups`.
fn change_groups(count: size_t, list: *const gid_t) -> c_int {
    // SAFETY: the application's own call.
    match unsafe { try_system_call(libc::SYS_setgroups, [count, list as usize, 0, 0, 0, 0]) } {
        Ok(_) => 0,
        Err(errno) => failed(errno),
    }
}

/// As [`change`], for `initgroups`.
fn change_to_groups_of(user: *const c_char, group: gid_t) -> c_int {
    let mut groups: Vec<gid_t> = vec![0; MAX_GROUPS];
    let mut count = MAX_GROUPS as c_int;
    // SAFETY: the application's name pointer, and space for `count` groups.
    let found = unsafe { libc::getgrouplist(user, group, groups.as_mut_ptr(), &raw mut count) };
    if found < 0 { failed(Errno(libc::EINVAL)) } else { change_groups(count as size_t, groups.as_ptr()) }
}

/// Replaces functions that change credentials. `before` gets the users that the call will set; `alone` is the system
/// call for this thread alone.
macro_rules! changes {
    ($(fn $name:ident($($arg:ident: $type:ty),*), $users:ident => $next:expr, alone $alone:expr;)*) => {$(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code))]
        unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            static REAL: Real = Real::new(concat!(stringify!($name), "\0"));
            let Some(real) = REAL.address() else { return failed(Errno(libc::ENOSYS)) };
            let _gate = dispatch::Gate::open();
            let errno = Errno::last();
            let prepared = hook::guarded(|| { before(|$users| $next); Ok(engine::started().is_some()) });
            let alone = prepared.unwrap_or(false) && is_alone_with_its_rights();
            errno.set();
            let result = if alone {
                $alone
            } else {
                // SAFETY: the C library's function of this name has this signature, and the arguments are the caller's own.
                unsafe {
                    let real: unsafe extern "C" fn($($type),*) -> c_int = std::mem::transmute(real);
                    real($($arg),*)
                }
            };
            let errno = Errno::last();
            let _ = hook::guarded(|| { after(alone); Ok(()) });
            errno.set();
            result
        }
    )*};
}

changes! {
    fn setuid(user: uid_t), users => after_setuid(user, users), alone change(libc::SYS_setuid, [user, 0, 0]);
    fn seteuid(user: uid_t), users => after_setresuid([KEEP, user, KEEP], users),
        alone change(libc::SYS_setresuid, [KEEP, user, KEEP]);
    fn setreuid(real: uid_t, effective: uid_t), users => after_setreuid([real, effective], users),
        alone change(libc::SYS_setreuid, [real, effective, 0]);
    fn setresuid(real: uid_t, effective: uid_t, saved: uid_t), users => after_setresuid([real, effective, saved], users),
        alone change(libc::SYS_setresuid, [real, effective, saved]);
    fn setgid(group: gid_t), users => users, alone change(libc::SYS_setgid, [group, 0, 0]);
    fn setegid(group: gid_t), users => users, alone change(libc::SYS_setresgid, [KEEP, group, KEEP]);
    fn setregid(real: gid_t, effective: gid_t), users => users, alone change(libc::SYS_setregid, [real, effective, 0]);
    fn setresgid(real: gid_t, effective: gid_t, saved: gid_t), users => users,
        alone change(libc::SYS_setresgid, [real, effective, saved]);
    fn setgroups(count: size_t, list: *const gid_t), users => users, alone change_groups(count, list);
    fn initgroups(user: *const c_char, group: gid_t), users => users, alone change_to_groups_of(user, group);
}

/// Returns the previous id, as the C library does; changes no other thread.
macro_rules! changes_for_files {
    ($(fn $name:ident by $number:expr;)*) => {$(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code))]
        unsafe extern "C" fn $name(id: u32) -> c_int {
            let _gate = dispatch::Gate::open();
            let errno = Errno::last();
            // SAFETY: the argument is a number.
            let before = unsafe { system_call($number, [id as usize, 0, 0, 0, 0, 0]) } as c_int;
            let _ = hook::guarded(|| { after(false); Ok(()) });
            errno.set();
            before
        }
    )*};
}

changes_for_files! {
    fn setfsuid by libc::SYS_setfsuid;
    fn setfsgid by libc::SYS_setfsgid;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predicted_users_match_the_kernel() {
        let root = [0; 3];
        for (next, expected) in [
            (after_setuid(7, root), [7, 7, 7]),
            (after_setuid(7, [0, 7, 0]), [0, 7, 0]),
            (after_setreuid([KEEP, 7], root), [0, 7, 7]),
            (after_setreuid([KEEP, 0], [0, 7, 0]), [0, 0, 0]),
            (after_setreuid([7, KEEP], root), [7, 0, 0]),
            (after_setreuid([7, 7], root), [7, 7, 7]),
            (after_setresuid([KEEP, 7, KEEP], root), [0, 7, 0]),
            (after_setresuid([7, 7, 7], root), [7, 7, 7]),
        ] {
            assert_eq!(next, expected);
        }
    }

    #[test]
    fn credentials_match_proc_status() {
        let now = Credentials::read();
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let field = |name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().map(|id| id.parse().unwrap()).collect::<Vec<u32>>()
        };
        let (users, groups) = (field("Uid:"), field("Gid:"));
        assert_eq!(now.users, users[..3]);
        assert_eq!(now.groups, groups[..2]);
        assert_eq!((now.identity.uid.0, now.identity.gid.0), (users[3], groups[3]));
        assert_eq!(now.others, field("Groups:"));
    }

    /// A raw system call changes only the calling thread's credentials, so this test affects no other.
    #[test]
    fn act_takes_origin_credentials_and_restores_them() {
        if !rustix::process::geteuid().is_root() {
            return forebay_testkit::skip("preload", "changing users needs root");
        }
        let changed = std::thread::spawn(|| {
            let origin = Credentials::read().origin();
            set_groups(4001, &[4002, 4003]).unwrap();
            set(libc::SYS_setresuid, [KEEP, 4001, KEEP]).unwrap();
            let mut seen = None;
            origin.act(&mut || seen = Some(Credentials::read())).unwrap();
            let seen = seen.expect("work ran");
            assert_eq!((seen.users[1], seen.groups[1]), (origin.uid, origin.gid));
            assert_eq!(seen.others, origin.groups);
            let now = Credentials::read();
            assert_eq!((now.users, now.groups[1], now.others), ([0, 4001, 0], 4001, vec![4002, 4003]));
            set(libc::SYS_setresuid, [4001, 4001, 4001]).unwrap();
            let mut done = false;
            assert!(origin.act(&mut || done = true).is_err() && !done, "root was given up permanently");
            assert!(!Credentials::read().includes(0) && others_include(0));
        });
        changed.join().unwrap();
    }
}
