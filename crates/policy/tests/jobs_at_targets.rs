//! The arbiter with modelled targets, in virtual time: TRIO's Figs. 10 to 12, and the learnt α.

use forebay_model::{Bytes, FileId, JobId, ServerId, Span};
use forebay_policy::Tick;
use forebay_policy::arbiter::{Arbiter, Choice, Climber, Grant, Member, Rules, Until};
use forebay_policy::device::{Curve, Device, ModelledTarget, Work};
use forebay_policy::drain::TargetId;
use forebay_testkit::{Rng, seed};
use std::collections::BTreeMap;

const MB: u64 = 1_000_000;

fn ost() -> ModelledTarget {
    ModelledTarget::new(Device { curve: Curve::trio(), seek: Tick(1_870_000), streams: 32, queue: 0 })
}

/// A completed write: target, member, bytes.
type Ended = (usize, Member, u64);

/// The members' writes and offsets.
#[derive(Default)]
struct Writers {
    at_work: BTreeMap<(usize, Work), (Member, u64)>,
    places: BTreeMap<(usize, Member), u64>,
}

impl Writers {
    /// A member continues at a target with its own part of a file.
    fn begin(
        &mut self,
        targets: &mut [ModelledTarget],
        now: Tick,
        target: usize,
        member: Member,
        bytes: u64,
    ) {
        let place = self.places.entry((target, member)).or_default();
        let span = Span::new(*place, *place + bytes);
        *place = span.end;
        let file = FileId(member.job.0 << 32 | u64::from(member.server.0));
        let work = targets[target].begin(now, file, span);
        self.at_work.insert((target, work), (member, bytes));
    }

    /// Advances to the next completion. Returns the completed writes.
    fn next(&mut self, targets: &mut [ModelledTarget]) -> Option<(Tick, Vec<Ended>)> {
        let now = targets.iter().filter_map(ModelledTarget::next_end).min()?;
        let mut ended = Vec::new();
        for (number, target) in targets.iter_mut().enumerate() {
            for work in target.ended(now) {
                let (member, bytes) = self.at_work.remove(&(number, work)).expect("a member started it");
                ended.push((number, member, bytes));
            }
        }
        Some((now, ended))
    }
}

const JOBS: u64 = 8;
const PROCESSES: u64 = 16;
const STRIPES: u64 = 4;

/// Eight jobs of sixteen processes with a buffer each; a process of a job writes twice as much as one of the
/// job before. Every file has stripes on four targets, and every target has stripes of all jobs.
struct Workload {
    targets: u64,
    /// Members in order of arrival.
    members: Vec<Member>,
}

impl Workload {
    fn new(targets: u64, rng: &mut Rng) -> Workload {
        let member = |number: u64| Member { server: ServerId(number as u16), job: JobId(number / PROCESSES) };
        let mut members: Vec<Member> = (0..JOBS * PROCESSES).map(member).collect();
        for last in (1..members.len()).rev() {
            members.swap(last, rng.below(last as u64 + 1) as usize);
        }
        Workload { targets, members }
    }

    /// Bytes of a process for each of its targets.
    fn share(member: Member) -> u64 {
        (2 * MB) << member.job.0
    }

    fn targets_of(&self, member: Member) -> impl Iterator<Item = u64> + use<> {
        let (first, count) = (u64::from(member.server.0), self.targets);
        (0..STRIPES).map(move |stripe| (first + stripe) % count)
    }

    /// When each job is done, with buffers and an arbiter.
    fn arbitrated(&self, choice: Choice, until: Until) -> Vec<f64> {
        let mut arbiter = Arbiter::new(Rules { choice, until, lease: Tick(u64::MAX), ..Rules::default() });
        let mut targets: Vec<ModelledTarget> = (0..self.targets).map(|_| ost()).collect();
        let mut writers = Writers::default();
        let begin = |writers: &mut Writers, targets: &mut [ModelledTarget], now, grants: Vec<Grant>| {
            for Grant { member, target, bytes } in grants {
                writers.begin(targets, now, target.0 as usize, member, bytes.0);
            }
        };
        for (number, &member) in self.members.iter().enumerate() {
            let now = Tick(number as u64);
            let have: Vec<(TargetId, Bytes)> = self
                .targets_of(member)
                .map(|target| (TargetId(target as u32), Bytes(Workload::share(member))))
                .collect();
            let grants = arbiter.request(now, member, 1, 0, &have).expect("request is accepted");
            begin(&mut writers, &mut targets, now, grants);
        }
        let mut ends = vec![0.0; JOBS as usize];
        while let Some((now, ended)) = writers.next(&mut targets) {
            for (target, member, _) in ended {
                ends[member.job.0 as usize] = now.secs();
                let left = Workload::share(member) - writers.places[&(target, member)];
                let grants = arbiter.done(now, member, TargetId(target as u32), Bytes(left));
                begin(&mut writers, &mut targets, now, grants);
            }
        }
        assert_eq!(arbiter.members(), 0);
        ends
    }

    /// The same with direct writes by every process, one stripe after the other.
    fn direct(&self) -> Vec<f64> {
        let mut targets: Vec<ModelledTarget> = (0..self.targets).map(|_| ost()).collect();
        let mut writers = Writers::default();
        let mut written: BTreeMap<Member, u64> = BTreeMap::new();
        let mut ends = vec![0.0; JOBS as usize];
        let mut go_on = |writers: &mut Writers, targets: &mut [ModelledTarget], now, member| {
            let stripe = written.entry(member).or_default();
            if *stripe < STRIPES * Workload::share(member) / MB {
                let target = self.targets_of(member).nth((*stripe % STRIPES) as usize).expect("of four");
                *stripe += 1;
                writers.begin(targets, now, target as usize, member, MB);
            }
        };
        for &member in &self.members {
            go_on(&mut writers, &mut targets, Tick(0), member);
        }
        while let Some((now, ended)) = writers.next(&mut targets) {
            for (_, member, _) in ended {
                ends[member.job.0 as usize] = now.secs();
                go_on(&mut writers, &mut targets, now, member);
            }
        }
        ends
    }
}

fn mean(times: &[f64]) -> f64 {
    times.iter().sum::<f64>() / times.len() as f64
}

fn last(times: &[f64]) -> f64 {
    times.iter().copied().fold(0.0, f64::max)
}

/// Figs. 10 to 12, with shared targets (16, 8 and 4 targets per process): shortest job first ends at 57 % of
/// first come, first served on average; the total time does not change.
#[test]
fn random_arrivals_end_sooner_on_average_with_shortest_job_first() {
    let mut rng = Rng::new(seed());
    for until in [Until::All, Until::Quantum(Bytes(8 * MB))] {
        let (mut ratios, mut totals) = (Vec::new(), Vec::new());
        for targets in [8, 16, 32].into_iter().cycle().take(15) {
            let workload = Workload::new(targets, &mut rng);
            let [sjf, fcfs] = [Choice::Sjf, Choice::Fcfs].map(|choice| workload.arbitrated(choice, until));
            ratios.push(mean(&sjf) / mean(&fcfs));
            totals.push(last(&sjf) / last(&fcfs));
        }
        assert!(mean(&ratios) <= 0.57, "seed {}: mean {} of {ratios:?}", seed(), mean(&ratios));
        assert!((0.8..=1.1).contains(&mean(&totals)), "seed {}: all take as long: {totals:?}", seed());
    }
}

/// The heaviest workload, that of Fig. 11: seven of eight jobs end early, the mean is below that of
/// concurrent writing, and so is the total.
#[test]
fn random_arrivals_at_few_targets_beat_concurrent_writing() {
    let workload = Workload::new(8, &mut Rng::new(seed()));
    let (sjf, direct) = (workload.arbitrated(Choice::Sjf, Until::All), workload.direct());
    let early = sjf.iter().filter(|&&end| end < 0.8 * last(&sjf)).count();
    assert_eq!(early, 7, "seed {}: {sjf:?}", seed());
    let gains = (mean(&sjf) / mean(&direct), last(&sjf) / last(&direct));
    assert!(gains.0 <= 0.63 && gains.1 < 0.9, "seed {}: {gains:?}", seed());
}

const WINDOW: Tick = Tick::ms(1000);

/// Bytes per second at one target that never lacks writers, over the given number of windows; `notify` sets α
/// after each.
fn rate(windows: u64, mut alpha: u32, mut notify: impl FnMut(Bytes) -> u32) -> f64 {
    let mut arbiter = Arbiter::new(Rules { alpha, lease: Tick(u64::MAX), ..Rules::default() });
    let mut targets = [ost()];
    let (mut writers, mut next, mut written) = (Writers::default(), 0, 0);
    let mut arrive = |arbiter: &mut Arbiter, now| {
        next += 1;
        let member = Member { server: ServerId((next % 1000) as u16), job: JobId(next) };
        arbiter.request(now, member, 1, 0, &[(TargetId(0), Bytes(16 * MB))]).expect("request is accepted")
    };
    let mut waiting: Vec<Grant> = (0..64).flat_map(|_| arrive(&mut arbiter, Tick(0))).collect();
    let (mut now, mut window, mut sum) = (Tick(0), WINDOW, 0);
    while window.0 <= windows * WINDOW.0 {
        for Grant { member, .. } in waiting.drain(..) {
            writers.begin(&mut targets, now, 0, member, MB);
        }
        let ended;
        (now, ended) = writers.next(&mut targets).expect("it never lacks writers");
        while now >= window {
            alpha = notify(Bytes(std::mem::take(&mut sum)));
            waiting.extend(arbiter.set_alpha(now, TargetId(0), alpha).expect("a number"));
            window = window.after(WINDOW);
        }
        for (_, member, bytes) in ended {
            (sum, written) = (sum + bytes, written + bytes);
            if writers.places[&(0, member)] < 16 * MB {
                writers.begin(&mut targets, now, 0, member, MB);
                continue;
            }
            waiting.extend(arbiter.done(now, member, TargetId(0), Bytes(0)));
            waiting.extend(arrive(&mut arbiter, now));
        }
    }
    written as f64 / (windows as f64 * WINDOW.secs())
}

/// The learnt α is almost as fast as the best fixed one.
#[test]
fn learnt_alpha_is_within_five_percent_of_the_best_fixed_one() {
    const WINDOWS: u64 = 250;
    let fixed: Vec<f64> = (1..=8).map(|alpha| rate(50, alpha, |_| alpha)).collect();
    let best = fixed.iter().copied().fold(0.0, f64::max);
    assert_eq!(fixed[1], best, "the paper's two: {fixed:?}");
    for start in [1, 2, 8, 32] {
        let mut climber = Climber::new(start, 64);
        let (mut changes, mut skips) = (Vec::new(), true);
        let learnt = rate(WINDOWS, start, |written| {
            // Writes from before a change end in the window after it.
            let alpha = climber.alpha();
            let next = if skips { alpha } else { climber.window(written) };
            skips = next != alpha;
            changes.push(next);
            next
        });
        assert!(learnt >= 0.95 * best, "from {start}: {learnt} of {best}");
        let moved = changes.windows(2).skip(40).filter(|pair| pair[0] != pair[1]).count();
        assert!(moved <= 60, "from {start}: it changed {moved} times in {WINDOWS} windows: {changes:?}");
    }
}
