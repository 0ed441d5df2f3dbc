//! The rule for every request of the protocol: which users may send it about a file of one user, with sample requests.
//!
//! The tables are matched exhaustively: a request without a rule does not compile.

use super::scene::{ROOT, Scene};
use forebay_model::{
    Access, Bytes, Change, FileId, Incarnation, JobId, Layout, Member, Members, Reshape, SeekTo, ServerId,
    SetTime, Span, Special, Stamp, Time, Uid,
};
use forebay_wire::{
    At, DrainCall, Exchange, IfExists, Introduction, KeyCall, KeyId, Known, PeerRequest, Place, Remain,
    RenameMode, RepairStep, Request, XattrMode,
};

/// The users whose request is accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum May {
    /// Every user; the answer shows nothing of other users' files.
    AnyUser,
    /// The owner of the file, and root.
    Owner,
    /// The user that opened the file; root only on behalf of that user.
    Opener,
    /// Root, which owns the service in these tests.
    Service,
    /// Authenticated servers of the cluster; not even root as such.
    Servers,
    /// Clients of the service's own user, through shared memory; root in these tests.
    Memory,
    /// Depends on the inner request.
    Inside,
}

macro_rules! rules {
    ($of:ident, $rule:ident, $all:ident; $($variant:ident: $may:expr, $scene:pat => $requests:expr;)*) => {
        /// The name and the rule of a request.
        pub(super) fn $rule(request: &$of) -> (&'static str, May) {
            match request {
                $($of::$variant { .. } => (stringify!($variant), $may),)*
            }
        }

        /// Requests of every kind about the files of a scene.
        pub(super) fn $all(scene: &Scene) -> Vec<$of> {
            let mut all = Vec::new();
            $(
                let $scene = scene;
                let requests: Vec<$of> = $requests;
                assert!(!requests.is_empty(), "{} has no sample request", stringify!($variant));
                for request in &requests {
                    assert_eq!($rule(request).0, stringify!($variant), "a request in the wrong row");
                }
                all.extend(requests);
            )*
            all
        }
    };
}

fn name(text: &str) -> forebay_model::Name {
    crate::raw::name(text)
}

fn create(dir: FileId, name: forebay_model::Name, access: Access, if_exists: IfExists) -> Request {
    Request::Create { dir, name, mode: 0o644, access, if_exists }
}

fn change(change: Change, file: FileId) -> Request {
    Request::SetAttr { file, change }
}

rules! { Request, rule, requests;
    Ping: May::AnyUser, _ => vec![Request::Ping];
    Walk: May::Owner, s => vec![
        Request::Walk { dir: s.top, path: s.file_name().as_bytes().to_vec(), follow: true },
        Request::Walk { dir: ROOT, path: s.path(), follow: false },
        Request::Walk { dir: s.sub, path: b"".to_vec(), follow: true },
        Request::Walk { dir: s.sub, path: b"..".to_vec(), follow: true },
    ];
    GetAttr: May::Owner, s => vec![Request::GetAttr { file: s.file }, Request::GetAttr { file: s.sub }];
    SetAttr: May::Owner, s => vec![
        change(Change { mode: Some(0o777), ..Change::default() }, s.file),
        change(Change { mode: Some(0o777), ..Change::default() }, s.top),
        change(Change { mtime: Some(SetTime::To(Time { secs: 1, nanos: 0 })), ..Change::default() }, s.file),
        change(Change { uid: Some(Uid(s.uid)), ..Change::default() }, s.outer),
    ];
    Open: May::Owner, s => vec![
        Request::Open { file: s.file, access: Access::READ, truncate: false },
        Request::Open { file: s.file, access: Access::WRITE, truncate: true },
        Request::Open { file: s.sub, access: Access::READ, truncate: false },
        Request::Open { file: s.outer, access: Access::READ, truncate: false },
    ];
    Create: May::Owner, s => vec![
        create(s.top, name("new"), Access::BOTH, IfExists::Refuse),
        create(s.top, s.file_name(), Access::READ, IfExists::Open),
        create(s.top, s.file_name(), Access::WRITE, IfExists::Truncate),
        create(ROOT, s.outer_name(), Access::READ, IfExists::Open),
    ];
    Reopen: May::Opener, s => vec![Request::Reopen { token: s.token }];
    Close: May::Opener, s => vec![Request::Close { token: s.token }];
    Truncate: May::Opener, s => vec![Request::Truncate { token: s.token, size: 1 }];
    TruncateFile: May::Owner, s => vec![
        Request::TruncateFile { file: s.file, size: 0 },
        Request::TruncateFile { file: s.outer, size: 9 },
    ];
    Punch: May::Opener, s => vec![Request::Punch { token: s.token, offset: 0, len: 5 }];
    Sync: May::Opener, s => vec![Request::Sync { token: s.token }];
    SyncAll: May::AnyUser, _ => vec![Request::SyncAll];
    MakeDir: May::Owner, s => vec![Request::MakeDir { dir: s.top, name: name("new"), mode: 0o777 }];
    RemoveDir: May::Owner, s => vec![Request::RemoveDir { dir: s.top, name: name("empty") }];
    Unlink: May::Owner, s => vec![
        Request::Unlink { dir: s.top, name: s.file_name() },
        Request::Unlink { dir: ROOT, name: s.outer_name() },
    ];
    Rename: May::Owner, s => {
        let rename = |(dir, name), (to_dir, to_name), mode| Request::Rename { dir, name, to_dir, to_name, mode };
        vec![
            rename((s.top, s.file_name()), (s.top, name("moved")), RenameMode::Replace),
            rename((s.top, s.file_name()), (ROOT, name(&format!("out-{}", s.title))), RenameMode::NoReplace),
            rename((ROOT, s.outer_name()), (s.top, name("in")), RenameMode::Replace),
            rename((ROOT, s.outer_name()), (s.top, s.file_name()), RenameMode::Exchange),
            rename((ROOT, name(&s.title)), (ROOT, name(&format!("taken-{}", s.title))), RenameMode::Replace),
        ]
    };
    Link: May::Owner, s => vec![
        Request::Link { file: s.file, dir: ROOT, name: name(&format!("linked-{}", s.title)) },
        Request::Link { file: s.file, dir: s.top, name: name("linked") },
    ];
    Symlink: May::Owner, s => {
        vec![Request::Symlink { dir: s.top, name: name("new"), target: b"elsewhere".to_vec() }]
    };
    ReadLink: May::Owner, s => vec![Request::ReadLink { file: s.link }];
    ReadDir: May::Owner, s => vec![
        Request::ReadDir { dir: s.top, cookie: 0, limit: 99, plus: true },
        Request::ReadDir { dir: s.sub, cookie: 0, limit: 99, plus: false },
    ];
    GetXattr: May::Owner, s => vec![Request::GetXattr { file: s.file, name: name("user.x") }];
    SetXattr: May::Owner, s => vec![Request::SetXattr {
        file: s.file,
        name: name("user.x"),
        value: b"changed".to_vec(),
        mode: XattrMode::Any,
    }];
    ListXattr: May::Owner, s => vec![Request::ListXattr { file: s.file }];
    RemoveXattr: May::Owner, s => vec![Request::RemoveXattr { file: s.file, name: name("user.x") }];
    StatFs: May::AnyUser, _ => vec![Request::StatFs];
    Status: May::AnyUser, _ => vec![Request::Status];
    Shutdown: May::Service, _ => vec![Request::Shutdown];
    Write: May::Opener, s => vec![
        Request::Write { token: s.token, at: At::Offset(0) },
        Request::Write { token: s.token, at: At::End },
    ];
    Read: May::Opener, s => vec![Request::Read { token: s.token, offset: 0, len: 99 }];
    History: May::AnyUser, _ => vec![Request::History { cursor: 0 }];
    GetPolicy: May::AnyUser, _ => vec![Request::GetPolicy];
    SetPolicy: May::Service, _ => vec![Request::SetPolicy { policy: "user-fair".to_owned() }];
    Exchange: May::Service, _ => vec![Request::Exchange(Exchange {
        server: ServerId(9),
        version: 1,
        capacity: 1,
        policy: "fifo".to_owned(),
        policy_set: Stamp(u64::MAX),
        part: 0,
        parts: 1,
        jobs: Vec::new(),
    })];
    Extend: May::Opener, s => vec![Request::Extend { token: s.token, size: 99 }];
    Jump: May::Owner, s => {
        let len = u16::try_from(s.title.len()).expect("short title");
        vec![Request::Jump { path: s.path(), follow: true, known: Known { len, dir: s.top } }]
    };
    MakeSpecial: May::Owner, s => {
        vec![Request::MakeSpecial { dir: s.top, name: name("new"), mode: 0o666, special: Special::Pipe }]
    };
    GetLayout: May::Owner, s => vec![Request::GetLayout { file: s.file }];
    SetLayout: May::Owner, s => vec![
        Request::SetLayout { dir: s.top, striping: None },
        Request::SetLayout { dir: s.sub, striping: None },
    ];
    ReplaceServer: May::Service, _ => vec![Request::ReplaceServer { server: ServerId(9) }];
    Peer: May::Servers, s => peer_requests(s).into_iter().map(|asked| Request::Peer(Box::new(asked))).collect();
    // Only the client itself can abandon its connection; other clients cannot use its number.
    Abandon: May::AnyUser, s => vec![Request::Abandon { connection: s.connection }];
    Losses: May::Service, _ => vec![Request::Losses];
    Drain: May::Inside, s => drain_calls(s).into_iter().map(Request::Drain).collect();
    Ring: May::Memory, s => vec![Request::Ring { token: s.token, own: None, write: true }];
    Slab: May::Memory, _ => vec![Request::Slab { ring: 0, keep: 0, least: 1 }];
    Number: May::AnyUser, _ => vec![Request::Number { row: 7 }];
    Map: May::Memory, s => vec![Request::Map { token: s.token, ring: 0, from: 0 }];
    SetRoute: May::Service, _ => vec![Request::SetRoute { mode: "buffer".to_owned() }];
    Queue: May::Memory, _ => vec![Request::Queue];
    Repair: May::Service, _ => vec![
        Request::Repair { step: RepairStep::Rescue { drop_dangling: false } },
        Request::Repair { step: RepairStep::Forgive },
    ];
    Keys: May::Service, _ => vec![
        Request::Keys(KeyCall::Grant { user: "7".to_owned(), expires: None }),
        Request::Keys(KeyCall::List),
        Request::Keys(KeyCall::Revoke { id: KeyId([5; 16]) }),
    ];
    Seek: May::Opener, s => vec![
        Request::Seek { token: s.token, offset: 0, to: SeekTo::Data, end: None, stripes: None },
        Request::Seek { token: s.token, offset: 0, to: SeekTo::Hole, end: Some(99), stripes: None },
    ];
    LocalPipe: May::Owner, s => vec![Request::LocalPipe { file: s.pipe }];
    KeepPages: May::Opener, s => vec![Request::KeepPages { token: s.token }];
    MapFile: May::Opener, s => [true, false]
        .map(|write| Request::MapFile { token: s.token, offset: 0, len: 1, write })
        .into();
}

/// Whether the drain covers the files of all users.
fn everything(file: Option<FileId>) -> bool {
    file.is_none_or(|file| file == ROOT)
}

rules! { DrainCall, drain_kind, drain_calls;
    Begin: May::Inside, s => vec![
        DrainCall::Begin { file: Some(s.file), order: None, last: false },
        DrainCall::Begin { file: Some(s.sub), order: None, last: false },
        DrainCall::Begin { file: Some(s.top), order: None, last: false },
        DrainCall::Begin { file: Some(ROOT), order: None, last: false },
        DrainCall::Begin { file: None, order: None, last: false },
        DrainCall::Begin { file: Some(s.file), order: Some("trio".to_owned()), last: false },
        DrainCall::Begin { file: Some(s.file), order: None, last: true },
    ];
    Look: May::AnyUser, _ => vec![DrainCall::Look { ticket: None }];
    Fetch: May::Owner, s => vec![DrainCall::Fetch { file: s.file, offset: 0, len: 99, turn: 1 }];
}

/// The rule of one request, resolved for inner requests.
pub(super) fn may(request: &Request) -> May {
    match request {
        Request::Drain(DrainCall::Begin { file, order, last }) => {
            match everything(*file) || order.is_some() || *last {
                true => May::Service,
                false => May::Owner,
            }
        }
        Request::Drain(call) => drain_kind(call).1,
        Request::Peer(asked) => peer_kind(asked).1,
        request => rule(request).1,
    }
}

fn layout() -> Layout {
    Layout::whole(ServerId(0), Bytes::mib(4).0)
}

fn place() -> Place {
    Place { path: vec![name("taken")], serial: 1 }
}

fn meeting() -> Introduction {
    let member =
        |server| Member { server: ServerId(server), address: format!("tcp:h:{server}"), socket: None };
    let members = Members::new(1, vec![member(0), member(1)]).expect("two servers");
    Introduction { server: ServerId(1), incarnation: Incarnation(1), joined: true, members }
}

rules! { PeerRequest, peer_kind, peer_requests;
    // Root may act as a server; this server is not part of the cluster.
    Introduce: May::Service, _ => vec![PeerRequest::Introduce(meeting())];
    Heartbeat: May::Servers, _ => vec![PeerRequest::Heartbeat];
    Keys: May::Servers, _ => vec![PeerRequest::Keys { keys: Vec::new() }];
    Names: May::Servers, _ => vec![PeerRequest::Names { request: vec![0; 9] }];
    Forward: May::Servers, _ => vec![PeerRequest::Forward { request: vec![0; 9] }];
    Share: May::Servers, s => vec![PeerRequest::Share { dir: s.top }];
    Vouch: May::Servers, s => vec![PeerRequest::Vouch { token: s.token }];
    Facts: May::Servers, s => vec![PeerRequest::Facts { file: s.file, closed: true }];
    Reshape: May::Servers, s => vec![PeerRequest::Reshape {
        file: s.file,
        serial: Stamp(1),
        change: Reshape::Cut(0),
        lost_below: 1,
    }];
    Forget: May::Servers, s => vec![PeerRequest::Forget { file: s.file }];
    DropSetId: May::Servers, s => vec![PeerRequest::DropSetId { file: s.file }];
    HasSetId: May::Servers, s => vec![PeerRequest::HasSetId { file: s.file }];
    Reshaped: May::Servers, s => vec![PeerRequest::Reshaped { file: s.file, serial: Stamp(1), done: true }];
    Outcome: May::Servers, s => vec![PeerRequest::Outcome { file: s.file, serial: Stamp(1) }];
    Put: May::Servers, s => vec![PeerRequest::Put {
        file: s.file,
        uid: Uid(s.uid),
        job: JobId(1),
        offset: 0,
        lost_below: 1,
        bytes: b"put".to_vec(),
    }];
    Backing: May::Servers, s => vec![PeerRequest::Backing { file: s.file }];
    Remains: May::Servers, s => vec![PeerRequest::Remains { of: vec![Remain::Inode(s.file)] }];
    CreateBacking: May::Servers, s => vec![PeerRequest::CreateBacking { file: s.file, size: 1 }];
    Drained: May::Servers, s => vec![PeerRequest::Drained { file: s.file }];
    MatchSize: May::Servers, s => vec![PeerRequest::MatchSize {
        file: s.file,
        layout: layout(),
        place: place(),
        size: 0,
        lost_below: 1,
    }];
    Undrained: May::Servers, s => {
        vec![PeerRequest::Undrained { files: vec![s.file], before: Stamp(u64::MAX), drain: true }]
    };
    Reread: May::Servers, s => vec![PeerRequest::Reread { file: s.file, size: Some(0) }];
    Arbitrate: May::Servers, _ => {
        vec![PeerRequest::Arbitrate { last_received: 0, fill: 0, wanted: Vec::new(), written: Vec::new() }]
    };
    Granted: May::Servers, _ => vec![PeerRequest::Granted];
    MissingInBacking: May::Servers, s => vec![PeerRequest::MissingInBacking { file: s.file, layout: layout(), dry_run: false }];
    Fetch: May::Servers, s => vec![PeerRequest::Fetch {
        file: s.file,
        place: place(),
        spans: vec![Span { start: 0, end: 9 }],
        turn: 1,
    }];
    Order: May::Servers, _ => vec![PeerRequest::Order { order: "trio".to_owned(), dry_run: false }];
}
