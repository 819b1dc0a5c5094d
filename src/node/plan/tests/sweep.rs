//! A stop after any step, then a new plan on what is there: the same end, for every call, every kind of volume, and
//! all ways to attach one.

use super::*;

/// What there is of one volume on a node.
#[derive(Clone, Debug, Default, PartialEq)]
struct World {
    connected: bool,
    /// Writes to the zvol of this machine are refused.
    refuses_writes: bool,
    directory: bool,
    mounted: bool,
    grown: bool,
    /// The target: whether the entry is there, and whether something is on it.
    entry: bool,
    bound: bool,
}

/// Which kind of volume, and where.
#[derive(Clone, Copy, Debug)]
struct Case {
    content: Content,
    attach: Attach,
    access: Access,
    /// In a subsystem with others: its controller stays.
    pooled: bool,
}

impl Case {
    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for content in [ext4(), Content::Raw] {
            for attach in [Attach::Fabric, Attach::Local] {
                for access in [Access::ReadWrite, Access::ReadOnly] {
                    all.push(Self {
                        content,
                        attach,
                        access,
                        pooled: false,
                    });
                }
            }
            all.push(Self {
                content,
                attach: Attach::Fabric,
                access: Access::ReadWrite,
                pooled: true,
            });
        }
        all
    }

    fn is_raw(self) -> bool {
        self.content == Content::Raw
    }

    fn stage_request(self) -> StageRequest {
        match self.access {
            Access::ReadWrite if self.pooled => pooled::request(self.content),
            Access::ReadWrite => request(self.content),
            Access::ReadOnly => read_only(self.content),
        }
    }

    fn publish_request(self) -> PublishRequest {
        let mut request = publish_request(self.content, self.access);
        request.target = self.stage_request().target;
        request
    }

    fn device(self) -> Mounted {
        match self.attach {
            Attach::Fabric if self.pooled => pooled::mounted(),
            Attach::Fabric => remote("pvc-1", 1),
            Attach::Local => local("pvc-1"),
        }
    }

    fn staging(self, world: &World) -> At {
        match (world.mounted, world.directory) {
            (true, _) => At::Mount(self.device()),
            (false, true) => At::Directory,
            (false, false) => At::Nothing,
        }
    }

    fn target(self, world: &World) -> At {
        match (world.bound, world.entry, self.is_raw()) {
            (true, _, false) => At::Mount(self.device()),
            (true, _, true) => At::Device(self.device()),
            (false, true, false) => At::Directory,
            (false, true, true) => At::EmptyFile,
            (false, false, _) => At::Nothing,
        }
    }

    fn controllers(self, world: &World) -> Vec<nvme::Controller> {
        match world.connected {
            true => vec![controller("live")],
            false => vec![],
        }
    }

    fn stage(self, world: &World) -> Vec<Step> {
        let mut observed = staged(self.staging(world), self.controllers(world));
        observed.attach = self.attach;
        observed.staging_access = self.access;
        stage(&self.stage_request(), &observed).expect("a plan")
    }

    fn unstage(self, world: &World) -> Vec<Step> {
        let mut observed = unstaged(self.staging(world), self.controllers(world));
        observed.pooled = self.pooled && world.connected;
        if self.pooled {
            observed.controllers.clear(); // those of the volume's own subsystem
        }
        observed.zvol = world.refuses_writes.then(|| (zvol(), Access::ReadOnly));
        unstage("pvc-1", &observed).expect("a plan")
    }

    fn publish(self, world: &World) -> Vec<Step> {
        let mut observed = published(self.staging(world), self.target(world));
        observed.attach = self.attach;
        observed.staging_access = self.access;
        observed.target_access = self.access;
        observed.device = self.is_raw().then(|| self.device().dev);
        publish(&self.publish_request(), &observed).expect("a plan")
    }

    fn unpublish(self, world: &World) -> Vec<Step> {
        unpublish("pvc-1", &self.target(world)).expect("a plan")
    }

    /// What a step does, and what must be so when it does it.
    fn apply(self, world: &mut World, step: &Step) {
        match step {
            Step::Connect => world.connected = true,
            Step::SetAccess(access) => {
                assert!(!world.bound, "writes are not allowed under a reader");
                world.refuses_writes = *access == Access::ReadOnly;
            }
            Step::MakeDirectory if world.mounted || self.is_raw() => {
                assert!(!self.is_raw());
                world.entry = true;
            }
            Step::MakeDirectory => world.directory = true,
            Step::MakeFile => {
                assert!(self.is_raw());
                world.entry = true;
            }
            Step::Attach => {
                assert!(world.directory && !self.is_raw());
                assert!(world.connected == (self.attach == Attach::Fabric));
                assert_eq!(
                    world.refuses_writes,
                    self.attach == Attach::Local && self.access == Access::ReadOnly
                );
                world.mounted = true;
            }
            Step::Grow => {
                assert!(world.mounted && self.access == Access::ReadWrite);
                world.grown = true;
            }
            Step::Bind(_) | Step::BindNode(_) => {
                assert!(world.entry && (world.mounted || self.is_raw()));
                world.bound = true;
            }
            Step::Detach if world.bound => world.bound = false,
            Step::Detach => world.mounted = false,
            Step::Disconnect(_) => {
                assert!(!world.mounted && !world.bound);
                world.connected = false;
            }
            Step::RemoveDirectory | Step::RemoveFile => {
                assert!(!world.bound);
                world.entry = false;
            }
            _ => {}
        }
    }

    fn sweep(self, begin: &World, plan: impl Fn(&World) -> Vec<Step>) -> World {
        let finish = |mut world: World| {
            for step in plan(&world) {
                self.apply(&mut world, &step);
            }
            world
        };
        let end = finish(begin.clone());
        let steps = plan(begin);
        for stop in 0..=steps.len() {
            let mut world = begin.clone();
            steps[..stop].iter().for_each(|s| self.apply(&mut world, s));
            assert_eq!(finish(world), end, "{self:?}: stopped after {stop} steps");
        }
        let again = finish(end.clone());
        assert_eq!(again, end, "{self:?}: a repeated call changes nothing");
        end
    }
}

#[test]
fn crash_after_any_step_the_next_plan_finishes() {
    for case in Case::all() {
        let staged = case.sweep(&World::default(), |world| case.stage(world));
        assert_eq!(staged.connected, case.attach == Attach::Fabric);
        assert_eq!(staged.mounted, !case.is_raw());
        let published = case.sweep(&staged, |world| case.publish(world));
        assert!(published.bound);
        let unpublished = case.sweep(&published, |world| case.unpublish(world));
        assert_eq!(unpublished, staged, "{case:?}");
        let unstaged = case.sweep(&unpublished, |world| case.unstage(world));
        assert_eq!(unstaged.connected, case.pooled);
        assert!(
            !unstaged.mounted && !unstaged.refuses_writes,
            "{case:?}: {unstaged:?}"
        );
    }
}

/// A call that was cut short and is never repeated: its reverse leaves nothing all the same.
#[test]
fn crash_in_a_stage_is_undone_by_unstage() {
    for case in Case::all() {
        let steps = case.stage(&World::default());
        for stop in 0..=steps.len() {
            let mut world = World::default();
            steps[..stop].iter().for_each(|s| case.apply(&mut world, s));
            for step in case.unstage(&world) {
                case.apply(&mut world, &step);
            }
            assert!(
                (!world.connected || case.pooled) && !world.mounted && !world.refuses_writes,
                "{case:?}: {world:?} after {stop} steps"
            );
        }
    }
}
