// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"

	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/identity"
	"github.com/hyperfleet/hyperfleet/kit/httpbound"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/kit/trigger"
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
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	"github.com/hyperfleet/hyperfleet/workload"

	"github.com/prometheus/client_golang/prometheus"
)

// Area is what the runners area needs of its process.
type Area struct {
	Config config.Runners
	// Namespace that the operator runs in.
	Namespace string
	Settings  vmspec.Settings
	// Hypervisors by spec.provider; Platforms by workload type.
	Hypervisors map[string]hypervisor.Factory
	Platforms   map[string]workload.Platform
	// Identity attests machines; nil where the operator has no SPIRE server.
	Identity identity.Registry
	// DevID is the authority over device identities; empty where the operator has none.
	DevID config.DevID
	// Transports put calls to the outside into the metrics.
	Transports Transports
	Registry   prometheus.Registerer
	// JobLabels are further labels of the metrics of jobs.
	JobLabels JobLabels
	Clock     clock.WithTicker
	Log       *slog.Logger
	// MaxBodyBytes bounds a webhook's body.
	MaxBodyBytes int64
	// WebhookURL is the operator's address as CI platforms know it; may be empty.
	WebhookURL string
}

// JobLabels are demand.JobLabelRepository and ...Workflow, if metrics are to have them, and how
// many combinations of their values there may be.
type JobLabels struct {
	Names []string
	Most  int
}

// Transports wrap the HTTP transports of the boundaries' clients. Each may be nil.
type Transports struct {
	Hypervisor func(http.RoundTripper) http.RoundTripper
	// Platform gets the workload type too.
	Platform func(platform string, next http.RoundTripper) http.RoundTripper
	// LogStore reaches the object store of runners' logs.
	LogStore http.RoundTripper
}

//+kubebuilder:rbac:groups="",namespace=hyperfleet-system,resources=secrets,resourceNames=hyperfleet-report-key,verbs=update
//+kubebuilder:rbac:groups="",namespace=hyperfleet-system,resources=secrets,resourceNames=hyperfleet-webhooks-ca,verbs=update

// Setup adds the area's controllers to the manager and gives the routes that CI
// platforms and machines call.
func (a *Area) Setup(ctx context.Context, mgr ctrl.Manager) (http.Handler, error) {
	if err := index(ctx, mgr); err != nil {
		return nil, err
	}

	parts, err := a.parts(mgr)
	if err != nil {
		return nil, err
	}

	for _, add := range slices.Concat(parts.controllers, parts.jobs) {
		if err := add(mgr); err != nil {
			return nil, err
		}
	}

	if err := mgr.Add(parts.inbox); err != nil {
		return nil, fmt.Errorf("add inbox of reports: %w", err)
	}

	if err := mgr.Add(parts.sources); err != nil {
		return nil, fmt.Errorf("add sources of jobs: %w", err)
	}

	if err := mgr.Add(parts.sweeper); err != nil {
		return nil, fmt.Errorf("add orphan sweeper: %w", err)
	}

	shelf := &report.Shelf{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Retention: a.Config.JobRetention, Clock: a.Clock, Log: a.Log,
	}
	if err := mgr.Add(shelf); err != nil {
		return nil, fmt.Errorf("add shelf of logs: %w", err)
	}

	if err := a.Registry.Register(metrics.NewCollector(mgr.GetClient(), mgr.Elected(), a.Clock)); err != nil {
		return nil, fmt.Errorf("register metrics of pools and clusters: %w", err)
	}

	// The connections outlive the controllers: whoever still works at shutdown has them.
	if err := mgr.Add(&closer{clusters: parts.clusters}); err != nil {
		return nil, fmt.Errorf("add connections: %w", err)
	}

	return parts.routes, nil
}

type parts struct {
	clusters    *connect.Clusters
	controllers []func(ctrl.Manager) error
	sweeper     *orphans.Sweeper
	jobs        []func(ctrl.Manager) error
	sources     *demand.Sources
	inbox       *report.Inbox
	routes      http.Handler
}

func (a *Area) parts(mgr ctrl.Manager) (*parts, error) {
	stepMetrics, claimMetrics, err := a.machineMetrics()
	if err != nil {
		return nil, err
	}

	handoverMetrics, err := handover.NewMetrics(a.Registry, claimMetrics.Issued)
	if err != nil {
		return nil, fmt.Errorf("set up handovers: %w", err)
	}

	devIDMetrics, err := devid.NewMetrics(a.Registry)
	if err != nil {
		return nil, fmt.Errorf("set up device identities: %w", err)
	}

	orphanMetrics, err := orphans.NewMetrics(a.Registry)
	if err != nil {
		return nil, fmt.Errorf("set up orphans: %w", err)
	}

	recorder := mgr.GetEventRecorder("hyperfleet")
	runner := func(controller string) *step.Runner { return a.runner(mgr, controller, stepMetrics, recorder) }
	woken := &trigger.Source{}
	inbox := &report.Inbox{Wake: woken.EnqueueFor}

	secrets, err := a.secrets(mgr)
	if err != nil {
		return nil, err
	}

	clusters := &connect.Clusters{Secrets: secrets, Factories: a.Hypervisors, Options: a.options(mgr, woken)}
	workloads := &connect.Workloads{
		Secrets: secrets, Platforms: a.Platforms, Transport: a.Transports.Platform, Clock: a.Clock,
	}

	jobs, err := a.jobs(mgr, runner("runnerjob"), secrets, workloads)
	if err != nil {
		return nil, err
	}

	return &parts{
		clusters: clusters,
		controllers: []func(ctrl.Manager) error{
			(&hypervisorcluster.Reconciler{
				Client: mgr.GetClient(), Runner: runner("hypervisorcluster"),
				Clusters: clusters, Interval: a.Config.ClusterInterval,
			}).SetupWithManager,
			(&machinetemplate.Reconciler{
				Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Runner: runner("machinetemplate"),
				Clusters: clusters, Workloads: workloads, Settings: a.Settings, Interval: a.Config.TemplateInterval,
			}).SetupWithManager,
			(&runnerpool.Reconciler{
				Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Runner: runner("runnerpool"),
				Recorder: recorder, Clock: a.Clock, Platforms: a.Platforms, Sources: jobs.sources, Trigger: jobs.sourcesChanged,
			}).SetupWithManager,
			(&machineclaim.Reconciler{
				Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Runner: runner("machineclaim"),
				Platforms: a.Platforms, Identity: a.Identity,
				Clusters: clusters, Workloads: workloads, Reports: inbox, Trigger: woken, Settings: a.Settings,
				Metrics: claimMetrics, Clock: a.Clock, Concurrency: a.Config.Concurrency,
				MaxAttempts: a.Config.MaxAttempts,
			}).SetupWithManager,
		},
		sweeper: &orphans.Sweeper{
			Live: mgr.GetAPIReader(), Recorder: recorder, Clusters: clusters, Workloads: workloads, Identity: a.Identity,
			OperatorUID: a.Settings.OperatorUID, Interval: a.Config.OrphanInterval, Clock: a.Clock,
			Age: a.Config.OrphanAge, DryRun: a.Config.OrphanDryRun,
			Log: a.Log, Metrics: orphanMetrics,
		},
		jobs:    jobs.controllers,
		sources: jobs.sources,
		inbox:   inbox,
		routes: a.routes(mgr, inbox, jobs.receiver, &handover.Handler{
			Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Workloads: workloads, Recorder: recorder,
			Identity: a.Identity, Settings: a.Settings, Metrics: handoverMetrics, Clock: a.Clock,
		}, &devid.Handler{
			Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Recorder: recorder, Key: a.Settings.ReportKey,
			Authority: a.DevID, Metrics: devIDMetrics, Clock: a.Clock,
		}),
	}, nil
}

// machineMetrics are those of steps and of machine claims.
func (a *Area) machineMetrics() (*step.Metrics, *machineclaim.Metrics, error) {
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

func (a *Area) secrets(mgr ctrl.Manager) (*connect.Secrets, error) {
	reach, err := httpbound.NewReach(a.Config.PlatformURLs, a.Config.PlatformNetworks)
	if err != nil {
		return nil, fmt.Errorf("read runners.platformURLs and runners.platformNetworks: %w", err)
	}

	return &connect.Secrets{Reader: mgr.GetAPIReader(), OperatorNamespace: a.Namespace, Reach: reach}, nil
}

// runner is what the passes of one controller share.
func (a *Area) runner(mgr ctrl.Manager, controller string, steps *step.Metrics, recorder events.EventRecorder) *step.Runner {
	return &step.Runner{
		Client: mgr.GetClient(), Controller: controller, Clock: a.Clock, Metrics: steps, Recorder: recorder,
		LogValues: machineclaim.LogValues, Trace: demand.TraceOf,
	}
}

// options are what every hypervisor's connection gets.
func (a *Area) options(mgr ctrl.Manager, woken *trigger.Source) hypervisor.Options {
	return hypervisor.Options{
		OperatorUID:  a.Settings.OperatorUID,
		Wake:         machineclaim.Waker(woken),
		ListInterval: a.Config.ListInterval,
		TaskInterval: a.Config.TaskInterval,
		SnippetsPath: a.Config.SnippetsPath,
		Transport:    a.Transports.Hypervisor,
		Clock:        a.Clock,
		Claimed: func(ctx context.Context) ([]int, error) {
			return claimed(ctx, mgr.GetAPIReader())
		},
	}
}

// claimed gives the ids that claims hold.
func claimed(ctx context.Context, reader client.Reader) ([]int, error) {
	var claims v1alpha1.MachineClaimList
	if err := reader.List(ctx, &claims); err != nil {
		return nil, fmt.Errorf("list machine claims: %w", err)
	}

	var ids []int

	for i := range claims.Items {
		if ref := claims.Items[i].Status.VMRef; ref != nil {
			if id, err := strconv.Atoi(ref.VMID); err == nil {
				ids = append(ids, id)
			}
		}
	}

	return ids, nil
}

// routes are what CI platforms and machines call.
func (a *Area) routes(mgr ctrl.Manager, inbox *report.Inbox, receiver, credentials, devices http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle(demand.Pattern, receiver)
	mux.Handle(report.Pattern, &report.Handler{
		Client: mgr.GetClient(), Inbox: inbox, Logs: a.logs(mgr), Key: a.Settings.ReportKey, Clock: a.Clock,
	})
	mux.Handle(handover.Pattern, credentials)
	mux.Handle(devid.Pattern, devices)
	mux.Handle(vmspec.ProgramPattern, vmspec.Programs(a.Settings.BootstrapServices))

	return mux
}

// index lets claims be found by the key of their TPM. Jobs and claims are indexed by the
// controller of jobs.
func index(ctx context.Context, mgr ctrl.Manager) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.MachineClaim{}, devid.IndexEK, devid.EKOf); err != nil {
		return fmt.Errorf("index claims by TPM: %w", err)
	}

	return nil
}

// closer closes the connections when the manager has stopped.
type closer struct{ clusters *connect.Clusters }

// Start waits for the end.
func (c *closer) Start(ctx context.Context) error {
	<-ctx.Done()
	c.clusters.Close()

	return nil
}
