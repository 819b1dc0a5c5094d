//! Claims, as users make them: the chart's own pods do the work, beside Kubernetes' controller manager and scheduler and
//! the snapshot controller. The processes of a controller's pod run on this machine, with the arguments that the chart
//! gives them and the token of that pod; agent and nodes run in the lab's machines. Only kubelet is played.

mod fixture;
mod kubelet;
mod leader;
mod life;
mod objects;
mod processes;
mod retain;
mod room;
