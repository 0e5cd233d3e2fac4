// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"

	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/identity"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/keep"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/kit/watch"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/runners/devid"
	"github.com/hyperfleet/hyperfleet/runners/handover"
	"github.com/hyperfleet/hyperfleet/runners/hypervisorcluster"
	"github.com/hyperfleet/hyperfleet/runners/machineclaim"
	"github.com/hyperfleet/hyperfleet/runners/machinetemplate"
	"github.com/hyperfleet/hyperfleet/runners/metrics"
	"github.com/hyperfleet/hyperfleet/runners/orphans"
	"github.com/hyperfleet/hyperfleet/runners/report"
	"github.com/hyperfleet/hyperfleet/runners/runnerpool"
	"github.com/hyperfleet/hyperfleet/runners/shell"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	"github.com/hyperfleet/hyperfleet/workload"

	"github.com/prometheus/client_golang/prometheus"
)

// Area holds what the process passes to the runners area.
type Area struct {
	Config config.Runners
	// Namespace is the namespace that the operator runs in.
	Namespace string
	// Namespaces are the namespaces that the operator serves, and that its cache has. If it is empty, the operator serves
	// all namespaces.
	Namespaces []string
	// Operators is the number of operators that share the limits of the hypervisors. 0 means 1.
	Operators int
	Settings  vmspec.Settings
	// Egress limits the servers that users name. If it is nil, only public addresses are allowed.
	Egress *bounds.EgressPolicy
	// Hypervisors are keyed by spec.provider, Platforms by workload type.
	Hypervisors map[string]hypervisor.Factory
	Platforms   map[string]workload.Platform
	// Identity registers the SPIFFE IDs of machines. It is nil if the operator has no SPIRE server.
	Identity identity.Registry
	// DevID configures the CA that signs device identities. It is empty if the operator has no such CA.
	DevID config.DevID
	// Transports add metrics to calls to external APIs.
	Transports Transports
	Registry   prometheus.Registerer
	// JobLabels are additional labels of the job metrics.
	JobLabels JobLabels
	Clock     clock.WithTicker
	Log       *slog.Logger
	// MaxBodyBytes limits the size of a webhook body.
	MaxBodyBytes int64
	// AuthorizeShell authorizes users of machines' shells and consoles. If it is nil, nobody can use them.
	AuthorizeShell shell.Authorizer
	// WebhookURL is the URL at which CI platforms reach the operator. It may be empty.
	WebhookURL string
}

// JobLabels selects the optional labels of the job metrics.
type JobLabels struct {
	// Names may hold demand.JobLabelRepository and demand.JobLabelWorkflow.
	Names []string
	// MaxCombinations limits how many combinations of label values the metrics have.
	MaxCombinations int
}

// Transports wraps the HTTP transports of the clients of external APIs. Each field may be nil.
type Transports struct {
	Hypervisor func(http.RoundTripper) http.RoundTripper
	// Platform also receives the workload type.
	Platform func(platform string, next http.RoundTripper) http.RoundTripper
	// PlatformNetwork is the innermost transport of the platforms' providers. If it is nil, they have that of Egress.
	PlatformNetwork http.RoundTripper
	// LogStore is the transport to the object store of runner logs.
	LogStore http.RoundTripper
}

//+kubebuilder:rbac:groups="",namespace=hyperfleet-system,resources=secrets,resourceNames=hyperfleet-report-key,verbs=update
//+kubebuilder:rbac:groups="",namespace=hyperfleet-system,resources=secrets,resourceNames=hyperfleet-webhooks-ca,verbs=update

// Setup adds the controllers of the area to the manager, and returns the handler of the HTTP routes that CI
// platforms and machines call.
func (a *Area) Setup(ctx context.Context, mgr ctrl.Manager) (http.Handler, error) {
	if err := addTPMIndex(ctx, mgr); err != nil {
		return nil, err
	}

	parts, err := a.newParts(mgr)
	if err != nil {
		return nil, err
	}

	for _, add := range slices.Concat(parts.controllers, parts.jobControllers) {
		if err := add(mgr); err != nil {
			return nil, err
		}
	}

	if err := mgr.Add(parts.inbox); err != nil {
		return nil, fmt.Errorf("add report inbox: %w", err)
	}

	if err := mgr.Add(parts.sources); err != nil {
		return nil, fmt.Errorf("add job sources: %w", err)
	}

	if err := mgr.Add(parts.sweeper); err != nil {
		return nil, fmt.Errorf("add orphan sweeper: %w", err)
	}

	logCollector := &report.LogGarbageCollector{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Namespaces: a.Namespaces, Retention: a.Config.JobRetention,
		Clock: a.Clock, Log: a.Log,
	}
	if err := mgr.Add(logCollector); err != nil {
		return nil, fmt.Errorf("add log cleanup: %w", err)
	}

	if err := a.Registry.Register(metrics.NewCollector(mgr.GetCache(), mgr.Elected(), a.Clock)); err != nil {
		return nil, fmt.Errorf("register pool and cluster metrics: %w", err)
	}

	if err := mgr.Add(&closer{clusters: parts.clusters}); err != nil {
		return nil, fmt.Errorf("add connection closer: %w", err)
	}

	return parts.routes, nil
}

// parts are the components that Setup adds to the manager, and the routes that it returns.
type parts struct {
	clusters       *connect.Clusters
	controllers    []func(ctrl.Manager) error
	sweeper        *orphans.Sweeper
	jobControllers []func(ctrl.Manager) error
	sources        *demand.Sources
	inbox          *report.Inbox
	routes         http.Handler
}

// newParts creates the components of the area and registers their metrics.
func (a *Area) newParts(mgr ctrl.Manager) (*parts, error) {
	stepMetrics, claimMetrics, err := a.newMachineMetrics()
	if err != nil {
		return nil, err
	}

	handoverMetrics, err := handover.NewMetrics(a.Registry, claimMetrics.ObserveCredential)
	if err != nil {
		return nil, fmt.Errorf("set up handover: %w", err)
	}

	devIDMetrics, err := devid.NewMetrics(a.Registry)
	if err != nil {
		return nil, fmt.Errorf("set up device identities: %w", err)
	}

	orphanMetrics, err := orphans.NewMetrics(a.Registry)
	if err != nil {
		return nil, fmt.Errorf("set up orphan sweeper: %w", err)
	}

	recorder := mgr.GetEventRecorder("hyperfleet")
	newStepReconciler := func(controller string) *step.Reconciler {
		return a.newReconciler(mgr, controller, stepMetrics, recorder)
	}
	claimTrigger := &watch.Source{}
	inbox := &report.Inbox{Enqueue: claimTrigger.EnqueueWithUrgency}

	secrets := &connect.Secrets{Reader: mgr.GetAPIReader(), OperatorNamespace: a.Namespace, Egress: a.Egress}
	clusters := &connect.Clusters{
		Secrets: secrets, Factories: a.Hypervisors, Options: a.hypervisorOptions(mgr, claimTrigger), Operators: a.Operators,
	}
	workloads := a.newWorkloads(secrets)

	jobs, err := a.newJobParts(mgr, newStepReconciler("runnerjob"), secrets, workloads)
	if err != nil {
		return nil, err
	}

	keeper := a.newKeeper(mgr)

	return &parts{
		clusters: clusters,
		controllers: []func(ctrl.Manager) error{
			(&hypervisorcluster.Reconciler{
				Client: mgr.GetClient(), Live: mgr.GetAPIReader(), StepReconciler: newStepReconciler("hypervisorcluster"),
				Clusters: clusters, Interval: a.Config.ClusterInterval, Keeper: keeper,
			}).SetupWithManager,
			(&machinetemplate.Reconciler{
				Client: mgr.GetClient(), Live: mgr.GetAPIReader(), StepReconciler: newStepReconciler("machinetemplate"),
				Clusters: clusters, Workloads: workloads, Settings: a.Settings, Interval: a.Config.TemplateInterval,
				Keeper: keeper, Clock: a.Clock,
			}).SetupWithManager,
			(&runnerpool.Reconciler{
				Client: mgr.GetClient(), Live: mgr.GetAPIReader(), StepReconciler: newStepReconciler("runnerpool"),
				Recorder: recorder, Clock: a.Clock, Platforms: a.Platforms, Sources: jobs.sources, Trigger: jobs.sourcesChanged,
			}).SetupWithManager,
			(&machineclaim.Reconciler{
				Client: mgr.GetClient(), Live: mgr.GetAPIReader(), StepReconciler: newStepReconciler("machineclaim"),
				Platforms: a.Platforms, Identity: a.Identity,
				Clusters: clusters, Workloads: workloads, Reports: inbox, Trigger: claimTrigger, Settings: a.Settings,
				Metrics: claimMetrics, Clock: a.Clock, Concurrency: a.Config.Concurrency, Consoles: a.newConsoleLogs(mgr),
				MaxAttempts: a.Config.MaxAttempts, Ends: jobs.ends,
			}).SetupWithManager,
		},
		sweeper: &orphans.Sweeper{
			Live: mgr.GetAPIReader(), Recorder: recorder, Clusters: clusters, Workloads: workloads, Identity: a.Identity,
			Namespaces: a.Namespaces, OperatorUID: a.Settings.OperatorUID, Interval: a.Config.OrphanInterval, Clock: a.Clock,
			MinAge: a.Config.OrphanAge, DryRun: a.Config.OrphanDryRun, Log: a.Log, Metrics: orphanMetrics,
		},
		jobControllers: jobs.controllers,
		sources:        jobs.sources,
		inbox:          inbox,
		routes: a.newRoutes(mgr, inbox, jobs.receiver, &handover.Handler{
			Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Workloads: workloads, Recorder: recorder,
			Identity: a.Identity, Settings: a.Settings, Metrics: handoverMetrics, Clock: a.Clock,
		}, &devid.Handler{
			Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Recorder: recorder, Key: a.Settings.ReportKey,
			Authority: a.DevID, Metrics: devIDMetrics, Clock: a.Clock,
		}, &shell.Handler{Client: mgr.GetClient(), Clusters: clusters, Recorder: recorder, Authorize: a.AuthorizeShell}),
	}, nil
}

// newWorkloads returns the connections to CI platforms.
func (a *Area) newWorkloads(secrets *connect.Secrets) *connect.Workloads {
	return &connect.Workloads{
		Secrets: secrets, Platforms: a.Platforms, Clock: a.Clock,
		Network: a.Transports.PlatformNetwork, Transport: a.Transports.Platform,
	}
}

// newKeeper returns the keeper of the Secrets of clusters and templates.
func (a *Area) newKeeper(mgr ctrl.Manager) *keep.Keeper {
	return &keep.Keeper{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Area: "runners", IsShared: true, Role: keep.RoleName, Clock: a.Clock,
		Lists: []client.ObjectList{&v1alpha1.HypervisorClusterList{}, &v1alpha1.HypervisorMachineTemplateList{}},
	}
}

// newMachineMetrics registers the metrics of reconcile steps and of machine claims.
func (a *Area) newMachineMetrics() (*step.Metrics, *machineclaim.Metrics, error) {
	steps, err := step.NewMetrics(a.Registry)
	if err != nil {
		return nil, nil, fmt.Errorf("set up steps: %w", err)
	}

	claims, err := machineclaim.NewMetrics(a.Registry)
	if err != nil {
		return nil, nil, fmt.Errorf("set up machine claims: %w", err)
	}

	return steps, claims, nil
}

// newReconciler returns the step reconciler of one controller.
func (a *Area) newReconciler(
	mgr ctrl.Manager, controller string, steps *step.Metrics, recorder events.EventRecorder,
) *step.Reconciler {
	return &step.Reconciler{
		Client: mgr.GetClient(), Controller: controller, Clock: a.Clock, Metrics: steps, Recorder: recorder,
		LogValues: machineclaim.LogValues, ParentSpan: demand.SpanContext,
	}
}

// hypervisorOptions returns the options of every hypervisor connection.
func (a *Area) hypervisorOptions(mgr ctrl.Manager, claimTrigger *watch.Source) hypervisor.Options {
	return hypervisor.Options{
		OperatorUID:   a.Settings.OperatorUID,
		Wake:          machineclaim.NewWakeFunc(claimTrigger, a.Namespaces),
		ListInterval:  a.Config.ListInterval,
		TaskInterval:  a.Config.TaskInterval,
		SnippetsPath:  a.Config.SnippetsPath,
		WrapTransport: a.Transports.Hypervisor,
		Clock:         a.Clock,
		ListClaimed: func(ctx context.Context, cluster string) ([]hypervisor.ClaimedMachine, error) {
			return machineclaim.ListClaimed(ctx, mgr.GetAPIReader(), a.Namespaces, cluster)
		},
	}
}

// newRoutes returns the handler of the HTTP routes that CI platforms, machines and users of shells call.
func (a *Area) newRoutes(
	mgr ctrl.Manager, inbox *report.Inbox, receiver, credentials, devices http.Handler, shells *shell.Handler,
) http.Handler {
	mux := http.NewServeMux()
	mux.Handle(demand.Pattern, receiver)
	mux.Handle(report.Pattern, &report.Handler{
		Client: mgr.GetClient(), Inbox: inbox, Logs: a.newLogs(mgr), Key: a.Settings.ReportKey, Clock: a.Clock,
	})
	mux.Handle(handover.Pattern, credentials)
	mux.Handle(devid.Pattern, devices)

	if shells.Authorize != nil {
		mux.Handle(shell.Prefix, shells.Routes())
	}

	vmspec.HandlePrograms(mux, a.Settings.BootstrapServices)

	return mux
}

// addTPMIndex indexes MachineClaims by the endorsement certificate of their TPM. The RunnerJob controller
// adds the other indexes of jobs and claims.
func addTPMIndex(ctx context.Context, mgr ctrl.Manager) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.MachineClaim{}, devid.IndexEK, devid.ExtractEK); err != nil {
		return fmt.Errorf("index machine claims by TPM: %w", err)
	}

	return nil
}

// closer closes the hypervisor connections when the manager stops.
type closer struct{ clusters *connect.Clusters }

// Start blocks until the context is done, then closes the connections.
func (c *closer) Start(ctx context.Context) error {
	<-ctx.Done()
	c.clusters.Close()

	return nil
}
