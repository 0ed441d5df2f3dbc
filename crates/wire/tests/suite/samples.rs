//! One sample of every message.

use forebay_model::{
    Access, Attr, Change, Error, ErrorKind, FileId, FileKind, Gid, Identity, Incarnation, Job, JobId, Layout,
    Member, Members, Name, Reshape, SeekTo, ServerId, SetTime, Span, Special, Stamp, Stripes, Striping, Time,
    Uid, Usage,
};
use forebay_wire::{
    Answer, At, BackingFile, Call, Channel, DrainCall, DrainReport, DrainStatus, DrainTicket, Entry,
    Exchange, Failing, FileMap, FilePart, FrameKind, Granted, Greeting, Hello, IfExists, Introduction,
    IntroductionReply, JobState, JobStatus, KeyCall, KeyId, KeyReply, Known, Loss, Losses, Lost, MapAt,
    MapGrant, MapPiece, Opening, PeerReply, PeerRequest, PeerStatus, Place, Proof, QueueGrant,
    RecoverySummary, RegionCounts, Remain, Remains, RenameMode, RepairStep, Reply, Request, RingGrant,
    Roster, RouteStatus, Sample, Security, Sharing, SlabGrant, Standing, Status, TargetStatus, Token,
    Undrained, UserKey, VERSION, Vouched, Wanted, Welcome, XattrMode, frame,
};

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(crate) fn job() -> Job {
    Job { label: "4711".into(), user: "alice".into(), group: "physics".into(), nodes: 64, priority: 3 }
}

pub(crate) fn token() -> Token {
    Token { file: FileId(77), access: Access::BOTH, uid: Uid(1000), serial: 5, seal: [9; 16] }
}

pub(crate) fn attr() -> Attr {
    Attr {
        id: FileId::made_by(ServerId(3), 12),
        kind: FileKind::File,
        mode: 0o4755,
        links: 2,
        uid: Uid(1000),
        gid: Gid(100),
        size: 1 << 40,
        buffered: 4096,
        atime: Time { secs: -1, nanos: 999_999_999 },
        mtime: Time { secs: 1 << 33, nanos: 0 },
        ctime: Time::default(),
    }
}

pub(crate) fn hello() -> Hello {
    let roster = Some(Roster { epoch: 4, servers: vec![ServerId(1), ServerId(300)] });
    Hello { version: VERSION, channel: Channel::Data, client: 0x1234_5678, job: job(), roster }
}

pub(crate) fn user_key() -> UserKey {
    let (id, user) = (KeyId([5; 16]), "ada".to_owned());
    let (uid, gid) = (Uid(1000), Gid(100));
    UserKey { id, uid, gid, user, made: 7, expires: Some(1 << 40), revoked: None }
}

pub(crate) fn opening() -> Opening {
    let (key, least) = (KeyId([6; 16]), Security::Authenticate);
    Opening { version: VERSION, key, least, noise: (0..120).collect() }
}

fn members() -> Members {
    let member =
        Member { server: ServerId(0), address: "tcp:host:1".to_owned(), socket: Some("/run/fb".to_owned()) };
    Members::new(3, vec![member]).unwrap()
}

pub(crate) fn greetings() -> Vec<Greeting> {
    let welcome = Welcome {
        server: ServerId(0),
        incarnation: Incarnation(u128::MAX),
        uid: Uid(1000),
        max_payload: 4 << 20,
        members: members(),
        session_millis: 30_000,
        connection: 0x1234_5678_9abc,
    };
    vec![
        Greeting::Challenge { noise: vec![3; 49] },
        Greeting::Welcome(welcome),
        Greeting::Refusal(Error::new(ErrorKind::Unauthenticated, "the key is not the service's")),
    ]
}

pub(crate) fn requests() -> Vec<Request> {
    let (dir, file, token) = (FileId::ROOT, FileId(9), token());
    let change = Change { mode: Some(0o600), mtime: Some(SetTime::Now), ..Change::default() };
    vec![
        Request::Ping,
        Request::Walk { dir, path: b"a/../b//c".to_vec(), follow: true },
        Request::Jump { path: b"a/b/c".to_vec(), follow: true, known: Known { len: 3, dir } },
        Request::GetAttr { file },
        Request::SetAttr { file, change },
        Request::Open { file, access: Access::READ, truncate: false },
        Request::Create {
            dir,
            name: name("x"),
            mode: 0o644,
            access: Access::BOTH,
            if_exists: IfExists::Refuse,
        },
        Request::Reopen { token },
        Request::Close { token },
        Request::Truncate { token, size: u64::MAX },
        Request::TruncateFile { file, size: 1 },
        Request::Punch { token, offset: 1, len: 2 },
        Request::Extend { token, size: 4096 },
        Request::Seek { token, offset: 1, to: SeekTo::Data, end: None, stripes: None },
        Request::Seek {
            token,
            offset: 1 << 40,
            to: SeekTo::Hole,
            end: Some(1 << 41),
            stripes: Stripes::new(1 << 20, 2, 3),
        },
        Request::Abandon { connection: u64::MAX },
        Request::Drain(DrainCall::Begin { file: Some(FileId(7)), order: Some("trio".into()), last: true }),
        Request::Drain(DrainCall::Fetch { file: FileId(7), offset: 8, len: 1 << 33, turn: 9 }),
        Request::Drain(DrainCall::Look { ticket: Some(9) }),
        Request::MakeSpecial { dir: FileId::ROOT, name: name("d"), mode: 0o600, special: Special::Block(7) },
        Request::Sync { token },
        Request::SyncAll,
        Request::MakeDir { dir, name: name("d"), mode: 0o1777 },
        Request::RemoveDir { dir, name: name("d") },
        Request::Unlink { dir, name: name("x") },
        Request::Rename {
            dir,
            name: name("x"),
            to_dir: file,
            to_name: name("y"),
            mode: RenameMode::Exchange,
        },
        Request::Link { file, dir, name: name("l") },
        Request::Symlink { dir, name: name("s"), target: b"../x".to_vec() },
        Request::ReadLink { file },
        Request::ReadDir { dir, cookie: 0, limit: 1000, plus: true },
        Request::GetXattr { file, name: name("user.a") },
        Request::SetXattr { file, name: name("user.a"), value: vec![0, 255], mode: XattrMode::Replace },
        Request::ListXattr { file },
        Request::RemoveXattr { file, name: name("user.a") },
        Request::StatFs,
        Request::Status,
        Request::Shutdown,
        Request::Write { token, at: At::End },
        Request::Write { token, at: At::Offset(1 << 50) },
        Request::Read { token, offset: 3, len: 1 << 20 },
        Request::History { cursor: 1 << 100 },
        Request::GetPolicy,
        Request::SetPolicy { policy: "user-then-size-fair".into() },
        Request::Exchange(Exchange {
            server: ServerId(3),
            version: 1 << 60,
            capacity: 400 << 20,
            policy: "size-fair".into(),
            policy_set: Stamp(5),
            part: 1,
            parts: 2,
            jobs: vec![job()],
        }),
        Request::GetLayout { file },
        Request::SetLayout { dir, striping: Some(Striping { width: 4, stripe: 1 << 20 }) },
        Request::ReplaceServer { server: ServerId(2) },
        Request::Losses,
        Request::Ring { token, own: Some(3), write: true },
        Request::Slab { ring: 3, keep: u32::MAX, least: 1 << 20 },
        Request::Number { row: u64::MAX },
        Request::Map { token, ring: 3, from: 1 << 40 },
        Request::SetRoute { mode: "traffic".into() },
        Request::Queue,
        Request::MapFile { token, offset: 1 << 40, len: 4096, write: true },
        Request::KeepPages { token },
        Request::LocalPipe { file },
        Request::Repair { step: RepairStep::Rescue { drop_dangling: true } },
        Request::Repair { step: RepairStep::Forgive },
        Request::Keys(KeyCall::Grant { user: "ada".to_owned(), expires: Some(1 << 40) }),
        Request::Keys(KeyCall::List),
        Request::Keys(KeyCall::Revoke { id: KeyId([5; 16]) }),
    ]
    .into_iter()
    .chain(peer_requests().into_iter().map(|request| Request::Peer(Box::new(request))))
    .collect()
}

pub(crate) fn peer_requests() -> Vec<PeerRequest> {
    let file = FileId(9);
    vec![
        PeerRequest::Introduce(Introduction {
            server: ServerId(0),
            incarnation: Incarnation(7),
            joined: true,
            members: members(),
        }),
        PeerRequest::Heartbeat,
        PeerRequest::Names { request: vec![1, 2] },
        PeerRequest::Forward { request: vec![3] },
        PeerRequest::Share { dir: FileId::ROOT },
        PeerRequest::Vouch { token: token() },
        PeerRequest::Facts { file, closed: true },
        PeerRequest::Reshape { file, serial: Stamp(4), change: Reshape::Cut(5), lost_below: 6 },
        PeerRequest::Forget { file },
        PeerRequest::DropSetId { file },
        PeerRequest::HasSetId { file },
        PeerRequest::Reshaped { file, serial: Stamp(5), done: true },
        PeerRequest::Outcome { file, serial: Stamp(6) },
        PeerRequest::Put { file, uid: Uid(7), job: JobId(8), offset: 9, lost_below: 10, bytes: vec![11, 12] },
        PeerRequest::Backing { file },
        PeerRequest::Remains {
            of: vec![
                Remain::Inode(file),
                Remain::Bytes { file, layout: Layout::whole(ServerId(2), 1 << 20), below: u64::MAX },
                Remain::Name { dir: FileId::ROOT, file, like: Some(name("x")) },
                Remain::Times { dir: None, file },
                Remain::Names(3),
            ],
        },
        PeerRequest::CreateBacking { file, size: 1 << 33 },
        PeerRequest::Drained { file },
        PeerRequest::MatchSize {
            file,
            layout: Layout::whole(ServerId(2), 1 << 20),
            place: Place { path: vec![name("a"), name("b")], serial: 6 },
            size: 1 << 33,
            lost_below: 7,
        },
        PeerRequest::Undrained { files: vec![file, FileId::ROOT], before: Stamp(u64::MAX), drain: true },
        PeerRequest::Reread { file, size: Some(1 << 33) },
        PeerRequest::Arbitrate {
            last_received: 8,
            fill: 1000,
            wanted: vec![Wanted { job: JobId(9), priority: 1, left: vec![(0, 1 << 33)], holds: vec![0, 3] }],
            written: vec![(0, 1 << 34), (3, 0)],
        },
        PeerRequest::Granted,
        PeerRequest::MissingInBacking { file, layout: Layout::whole(ServerId(3), 4096), dry_run: true },
        PeerRequest::Fetch {
            file,
            place: Place { path: vec![name("a"), name("b")], serial: 6 },
            spans: vec![Span::new(1, 1 << 33)],
            turn: 1 << 34,
        },
        PeerRequest::Order { order: "trio".to_owned(), dry_run: true },
        PeerRequest::Keys { keys: vec![user_key()] },
    ]
}

pub(crate) fn peer_replies() -> Vec<PeerReply> {
    let held = FilePart { size: 1 << 40, touched: Some(Stamp(8)), buffered: 4096 };
    vec![
        PeerReply::Done,
        PeerReply::Names { reply: vec![3] },
        PeerReply::Alive { boot: 1 << 60 },
        PeerReply::Introduced(IntroductionReply {
            server: ServerId(2),
            incarnation: Incarnation(9),
            joined: false,
            replaced: Some(1),
            next_id: FileId::made_by(ServerId(2), 99),
        }),
        PeerReply::Vouched(Vouched { lost_below: u64::MAX, set_id: true, stripes: (1 << 20, 3) }),
        PeerReply::Facts(held),
        PeerReply::Fetched { bytes: 1 << 33, full: true },
        PeerReply::Keys { keys: vec![user_key(), user_key()] },
        PeerReply::Share { subdirs: 3, touched: Some(Stamp(4)) },
        PeerReply::Outcome { done: Some(false) },
        PeerReply::Backing { place: Some(Place { path: vec![name("a")], serial: 5 }) },
        PeerReply::Remains(vec![
            Remains::All,
            Remains::NoInode,
            Remains::NotBytes { count: 7, open: true },
            Remains::Name(Some(name("x"))),
            Remains::Times(Some(2)),
        ]),
        PeerReply::BackingFile {
            backing_file: Some(BackingFile {
                place: Place { path: vec![name("a")], serial: 5 },
                grown: 1 << 33,
                layout: Layout::whole(ServerId(2), 1 << 20),
                owner: Uid(5),
            }),
        },
        PeerReply::Granted(vec![Granted { serial: 10, job: JobId(9), target: 3, bytes: 8 << 20 }]),
        PeerReply::Undrained { now: Stamp(11), left: vec![Undrained { bytes: 12, tries: 3 }] },
    ]
}

pub(crate) fn calls() -> Vec<Call> {
    let identity = Identity { uid: Uid(5), gid: Gid(6), groups: vec![Gid(7), Gid(u32::MAX)] };
    requests()
        .into_iter()
        .flat_map(|request| {
            [None, Some(identity.clone())].map(|identity| Call { identity, request: request.clone() })
        })
        .collect()
}

fn status() -> Status {
    Status {
        server: ServerId(1),
        version: "0.1.0".into(),
        incarnation: Incarnation(1),
        pid: 4242,
        uptime: 86_400,
        store: "/var/lib/forebay".into(),
        medium: "tmpfs, huge pages".into(),
        usage: Usage { capacity: 1 << 40, used: 3, live: 2, files: 1 },
        region_size: 64 << 20,
        regions: RegionCounts { free: 1, filling: 2, sealed: 3, draining: 4, resting: 5 },
        connections: 6,
        sessions: 7,
        opens: 8,
        waiting: 9,
        recovery: RecoverySummary {
            records: 1,
            machine_crash: true,
            millis: 17,
            ..RecoverySummary::default()
        },
        damage: vec!["region 4 is short".into()],
        standing: Standing::Waiting("for server 2".into()),
        jobs: vec![JobStatus {
            id: job().id(),
            job: job(),
            written: 1,
            direct: 1,
            read: 2,
            requests: 3,
            seen: Stamp(4),
            connections: 5,
            state: JobState::Idle,
            operations: 6,
            waited: 7,
            waiting: 8,
            share: 250_000,
            recent: 9,
        }],
        drain: Some(drain()),
        route: Some(RouteStatus {
            mode: "traffic".into(),
            pipeline: true,
            bypass: false,
            buffered: 5,
            direct: 6,
            waits: 7,
            waited: 8,
            waiting: vec![("7".into(), 2)],
            decided: 9,
            indexed: 12,
            extents: 10,
            index: 11,
        }),
    }
}

fn drain() -> DrainStatus {
    let target =
        TargetStatus { name: "ost3".into(), queued: 1 << 33, written: 2, rate: 3, alpha: 2, writers: 1 };
    let (path, why) = ("/run/7".into(), "no space".into());
    DrainStatus {
        backend: "dir:/scratch".into(),
        order: "trio".into(),
        threshold: 20,
        queued: 1,
        files: 2,
        waiting: 3,
        written: 4,
        freed: 5,
        read_cache: (6, 7),
        targets: vec![target],
        failing: vec![Failing { path, user: Uid(1000), why, tries: 6 }],
        failures: 7,
        resting: true,
        notes: vec!["no links".into()],
    }
}

pub(crate) fn replies() -> Vec<Reply> {
    let entry = |attr| Entry { name: name("é"), file: FileId(3), kind: FileKind::Symlink, cookie: 11, attr };
    vec![
        Reply::Done,
        Reply::Attr(attr()),
        Reply::Found(attr()),
        Reply::Link { dir: FileId::ROOT, target: b"/abs".to_vec(), rest: b"x/y".to_vec() },
        Reply::Opened {
            token: token(),
            attr: attr(),
            layout: Layout::whole(ServerId(3), 4096),
            created: true,
        },
        Reply::Elsewhere { dir: FileId(7), rest: b"b/c".to_vec() },
        Reply::At { dir: FileId(7), file: FileId(9), rest: b"c".to_vec() },
        Reply::Target(b"t".to_vec()),
        Reply::Entries { entries: vec![entry(None), entry(Some(attr()))], next: Some(12) },
        Reply::Value(vec![1, 2, 3]),
        Reply::Names(vec![name("user.a"), name("user.b")]),
        Reply::Usage(Usage::default()),
        Reply::Status(Box::new(status())),
        Reply::Written { offset: 1 << 30 },
        Reply::Drain(Box::new(DrainReport {
            ticket: Some(DrainTicket {
                id: 1,
                done: true,
                files: 2,
                left: 3,
                bytes: 1 << 40,
                failed: 4,
                skipped: 5,
            }),
            fetched: 6,
            full: true,
            status: drain(),
        })),
        Reply::Data,
        Reply::History {
            samples: vec![Sample { second: 1, label: "7".into(), written: 2, read: 3 }],
            next: Some(4),
        },
        Reply::Sharing(Box::new(Sharing {
            policy: "size-fair".into(),
            policy_set: Stamp(1),
            scheduler: "stride".into(),
            device_rate: 2,
            lambda_millis: 500,
            peers: vec![PeerStatus {
                address: "tcp:b:7411".into(),
                server: Some(ServerId(2)),
                trouble: Some("it does not answer".into()),
                agrees: true,
            }],
        })),
        Reply::Layout {
            striping: Some(Striping { width: 0, stripe: 4 << 20 }),
            layout: Some(Layout::whole(ServerId(3), 4096)),
        },
        Reply::Losses(Losses {
            list: [
                Lost::Inode(FileKind::Symlink),
                Lost::Bytes { count: 7, open: true },
                Lost::Name { kind: FileKind::File, names: 2, size: 1 << 40 },
                Lost::Rest { bytes: 4096 },
                Lost::Directory { names: 3 },
            ]
            .map(|what| Loss {
                server: Some(ServerId(2)),
                what,
                file: FileId(9),
                dir: Some(FileId::ROOT),
                above: Some(b"/a".to_vec()),
                name: Some(name("x")),
            })
            .to_vec(),
            more: 1,
        }),
        Reply::Repaired(vec!["file 9 is /lost-9 now".into()]),
        Reply::Ring(Box::new(RingGrant {
            ring: 3,
            path: b"/s/m00003.ring".to_vec(),
            doorbell: b"/s/doorbell".to_vec(),
            nonce: 1 << 100,
            binding: 2,
            clock: 1 << 50,
        })),
        Reply::Slab(Box::new(SlabGrant {
            slab: 4,
            path: b"/s/r00001.data".to_vec(),
            size: 4 << 20,
            start: 65536,
            len: 262_144,
            records: 128,
            epoch: 5,
        })),
        Reply::Number(1 << 40),
        Reply::Keys(Box::new(KeyReply::Keys(vec![user_key()]))),
        Reply::Keys(Box::new(KeyReply::Revoked { key: user_key(), missing: vec![ServerId(3)] })),
        Reply::Keys(Box::new(KeyReply::Granted { key: user_key(), secret: [8; 32], missing: Vec::new() })),
        Reply::Map(Box::new(MapGrant {
            lease: 7,
            size: 1 << 33,
            start: 4096,
            pieces: vec![
                MapPiece { len: 4096, at: MapAt::Region { file: 0, position: 65536 } },
                MapPiece { len: 1 << 32, at: MapAt::Zeros },
                MapPiece { len: 1, at: MapAt::Ask },
            ],
            dir: b"/s".to_vec(),
            names: vec![b"r00001.data".to_vec()],
            region: 4 << 20,
        })),
        Reply::Queue(Box::new(QueueGrant {
            path: b"/s/q00001.queue".to_vec(),
            doorbell: b"/s/desk0.doorbell".to_vec(),
            nonce: 1 << 99,
        })),
        Reply::FileMap(FileMap::Shared { socket: b"forebay-map-0".to_vec(), ticket: [7; 16] }),
        Reply::FileMap(FileMap::Copy),
        Reply::Position(Some(1 << 40)),
        Reply::Position(None),
    ]
    .into_iter()
    .chain(peer_replies().into_iter().map(|reply| Reply::Peer(Box::new(reply))))
    .collect()
}

pub(crate) fn answers() -> Vec<Answer> {
    let refused = Error::new(ErrorKind::AccessDenied, "permission denied");
    replies().into_iter().map(Ok).chain([Err(refused)]).collect()
}

/// Header and body of a frame with every message.
pub(crate) fn frames() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut add = |make: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::new();
        make(&mut out);
        all.push(out);
    };
    add(&|out| frame(out, FrameKind::Hello, 0, &hello(), 0).unwrap());
    add(&|out| frame(out, FrameKind::Proof, 0, &Proof {}, 0).unwrap());
    add(&|out| frame(out, FrameKind::Hello, 0, &opening(), 0).unwrap());
    for greeting in greetings() {
        add(&|out| frame(out, FrameKind::Greeting, 0, &greeting, 0).unwrap());
    }
    for call in calls() {
        add(&|out| frame(out, FrameKind::Call, 99, &call, 4096).unwrap());
    }
    for answer in answers() {
        add(&|out| frame(out, FrameKind::Answer, 99, &answer, 17).unwrap());
    }
    all
}
