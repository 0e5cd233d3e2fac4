// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	bridgev1 "github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/operator/fence"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/identity/spire"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/shards"
	"github.com/hyperfleet/hyperfleet/kit/watch"
	"github.com/hyperfleet/hyperfleet/runners"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
)

// reconcileTimeout limits the duration of one reconcile in controllers that do not set their own timeout.
const reconcileTimeout = 2 * time.Minute

// stopTimeout is how long the controllers may take to end their reconciles at the end of the process.
const stopTimeout = 8 * time.Second

// run sets up the operator and runs it until ctx ends.
func run(ctx context.Context, cfg config.OperatorConfig, kube *rest.Config, logger *slog.Logger) error {
	ctrl.SetLogger(log.ToLogr(logger))

	// The priority and fairness of the API server limits our requests. The rate limiter of the client, with
	// five requests per second, would delay bursts of jobs.
	kube.QPS = -1

	lease := fence.New(clock.RealClock{}, cfg.LeaderElection.LeaseDuration)

	mgr, err := newManager(ctx, cfg, kube, lease)
	if err != nil {
		return err
	}

	identity, err := loadIdentity(ctx, mgr.GetAPIReader(), mgr.GetClient(), cfg)
	if err != nil {
		return err
	}

	settings, err := newMachineSettings(cfg, identity)
	if err != nil {
		return err
	}

	transports, err := NewTransports(ctrlmetrics.Registry, lease.GuardWrites)
	if err != nil {
		return err
	}

	transports.checkLease = lease.CheckLease

	if transports.egress, err = NewEgressPolicy(cfg.Runners); err != nil {
		return err
	}

	registry, err := NewSPIRERegistry(cfg.Identity.SPIRE, identity.uid, transports.ObserveSPIRE)
	if err != nil {
		return err
	}

	if registry != nil {
		defer registry.Close() //nolint:errcheck // the process ends
	}

	if err := registerMetrics(ctrlmetrics.Registry, mgr, cfg.Controllers); err != nil {
		return err
	}

	server := &server{cfg: cfg.Webhooks, log: logger, authority: identity.webhookAuthority}
	setups := map[string]func(context.Context, ctrl.Manager) error{
		config.AreaRunners: func(ctx context.Context, mgr ctrl.Manager) error {
			return addRunnersArea(ctx, mgr, cfg, kube, settings, transports, registry, server, logger)
		},
		config.AreaNetworking: func(ctx context.Context, mgr ctrl.Manager) error {
			return addNetworkingArea(ctx, mgr, cfg, identity.uid, transports, logger)
		},
		config.AreaHosts: func(ctx context.Context, mgr ctrl.Manager) error {
			return addHostsArea(ctx, mgr, cfg, transports)
		},
		config.AreaBridge: func(ctx context.Context, mgr ctrl.Manager) error {
			return addBridgeArea(ctx, mgr, cfg, transports, logger)
		},
	}
	if err := startAreas(ctx, mgr, cfg.Controllers, setups, logger); err != nil {
		return err
	}

	if err := mgr.Add(saveMemoryAtStart()); err != nil {
		return fmt.Errorf("add garbage collection: %w", err)
	}

	logger.InfoContext(ctx, "operator starts", "operatorUid", identity.uid, "namespace", cfg.Namespace,
		"controllers", cfg.Controllers)

	if err := runUntilStopped(ctx, mgr, server); err != nil {
		return err
	}

	logger.InfoContext(ctx, "operator has stopped")

	return nil
}

// runUntilStopped runs the controllers until ctx ends, and then waits for the requests of the webhook server. A process that
// has lost its Lease does not wait for them.
func runUntilStopped(ctx context.Context, mgr ctrl.Manager, server *server) error {
	err := mgr.Start(ctx)
	if ctx.Err() != nil {
		server.wait()
	}

	if err != nil {
		return fmt.Errorf("run operator: %w", err)
	}

	return nil
}

const (
	// startGCPercent is the garbage collection target percentage until startPeriod after the process has become the
	// leader. In this time the operator reads all objects and machines, and reconciles all objects, so it needs more memory
	// than ever after.
	startGCPercent = 50
	startPeriod    = 30 * time.Second
)

// saveMemoryAtStart lets the process use less memory and more CPU time until startPeriod after the start of the returned
// Runnable, which only a leader starts.
func saveMemoryAtStart() manager.RunnableFunc {
	restore := cli.SetGCPercentUntil(startGCPercent)

	return func(ctx context.Context) error {
		timer := time.NewTimer(startPeriod)
		defer timer.Stop()

		select {
		case <-ctx.Done():
		case <-timer.C:
		}

		restore()

		return nil
	}
}

// addRunnersArea adds the controllers of the runners area and the server for webhooks and machine reports to the
// manager.
func addRunnersArea(
	ctx context.Context, mgr ctrl.Manager, cfg config.OperatorConfig, kube *rest.Config, settings vmspec.Settings,
	transports *Transports, registry *spire.Registry, server *server, logger *slog.Logger,
) error {
	logStore, err := transports.newLogStoreTransport(cfg.Runners.Logs.Store.CAFile)
	if err != nil {
		return err
	}

	platforms, err := transports.newPlatformTransport(cfg.Runners.PlatformCAFile)
	if err != nil {
		return err
	}

	reviews, err := kubernetes.NewForConfig(kube)
	if err != nil {
		return fmt.Errorf("create client for access reviews: %w", err)
	}

	area := &runners.Area{
		AuthorizeShell: newGuard(reviews, clock.RealClock{}).authorizeShell,
		Config:         cfg.Runners, Namespace: cfg.Namespace, Namespaces: cfg.Namespaces, Operators: cfg.Shard.Operators,
		Settings: settings, Egress: transports.egress,
		Hypervisors: hypervisors(kube, transports),
		Platforms:   Platforms(),
		Transports: runners.Transports{
			Hypervisor: transports.wrapHypervisor, Platform: transports.wrapPlatform, PlatformNetwork: platforms, LogStore: logStore,
		},
		DevID:        cfg.Identity.DevID,
		Registry:     ctrlmetrics.Registry,
		JobLabels:    runners.JobLabels{Names: cfg.Metrics.JobLabels, MaxCombinations: cfg.Metrics.MaxJobLabelValues},
		Clock:        clock.RealClock{},
		Log:          logger,
		MaxBodyBytes: cfg.Webhooks.MaxBodyBytes,
		WebhookURL:   strings.TrimSuffix(cfg.Webhooks.URL, "/"),
	}

	if registry != nil {
		area.Identity = registry
	}

	routes, err := area.Setup(ctx, mgr)
	if err != nil {
		return fmt.Errorf("set up runners area: %w", err)
	}

	server.handler = routes
	if err := mgr.Add(server); err != nil {
		return fmt.Errorf("add webhook server: %w", err)
	}

	if err := mgr.AddReadyzCheck("webhooks", server.checkReady); err != nil {
		return fmt.Errorf("add readiness check: %w", err)
	}

	return nil
}

// newManager returns the manager. It changes kube: from then on, writes through kube fail while the Lease of
// this process has expired. Renewals of the Lease are exempt from this check, and are what makes the Lease
// valid again.
func newManager(
	ctx context.Context, cfg config.OperatorConfig, kube *rest.Config, lease *fence.Fence,
) (ctrl.Manager, error) {
	electionConfig := rest.CopyConfig(kube)
	electionConfig.Wrap(lease.TrackRenewals)
	// Token and access reviews for metrics change nothing, and every replica sends them.
	reviewConfig := rest.CopyConfig(kube)
	kube.Wrap(lease.GuardWrites)

	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, v1alpha1.AddToScheme, infrav1.AddToScheme, bridgev1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("build scheme: %w", err)
		}
	}

	election := cfg.LeaderElection

	mgr, err := ctrl.NewManager(kube, ctrl.Options{
		Scheme:                 scheme,
		NewCache:               watch.NewCache(ctx),
		MapperProvider:         watch.NewMapper,
		Cache:                  cache.Options{DefaultTransform: watch.NewTransform(), DefaultNamespaces: listCachedNamespaces(cfg)},
		Metrics:                metricsOptions(cfg.Metrics, reviewConfig),
		HealthProbeBindAddress: cfg.Health.BindAddress,
		// A program runs one operator, but a test runs several, one after the other.
		Controller:                    ctrlconfig.Controller{ReconciliationTimeout: reconcileTimeout, SkipNameValidation: new(true)},
		GracefulShutdownTimeout:       new(stopTimeout),
		LeaderElection:                election.Enabled,
		LeaderElectionID:              shards.LeaseName(cfg.Controllers, cfg.Shard.Name),
		LeaderElectionLabels:          shards.NewLabels(cfg.Namespaces),
		LeaderElectionNamespace:       cfg.Namespace,
		LeaderElectionReleaseOnCancel: true,
		LeaderElectionConfig:          electionConfig,
		LeaseDuration:                 &election.LeaseDuration,
		RenewDeadline:                 &election.RenewDeadline,
		RetryPeriod:                   &election.RetryPeriod,
	})
	if err != nil {
		return nil, fmt.Errorf("create manager: %w", err)
	}

	if err := mgr.AddHealthzCheck("alive", healthz.Ping); err != nil {
		return nil, fmt.Errorf("add health check: %w", err)
	}

	if err := mgr.AddReadyzCheck("caches", newCacheCheck(mgr.GetCache().WaitForCacheSync)); err != nil {
		return nil, fmt.Errorf("add readiness check: %w", err)
	}

	return mgr, nil
}

// listCachedNamespaces returns the namespaces that the caches watch. It returns nil for all namespaces. Objects without a
// namespace are always watched.
func listCachedNamespaces(cfg config.OperatorConfig) map[string]cache.Config {
	if len(cfg.Namespaces) == 0 {
		return nil
	}

	out := map[string]cache.Config{}
	for _, namespace := range cfg.Namespaces {
		out[namespace] = cache.Config{}
	}

	return out
}

// newCacheCheck returns a readiness check that succeeds once the caches have synced, and from then on always
// succeeds. Controllers that start later, when the process becomes the leader, add caches of their own. The
// webhook server does not need these caches, so they must not make the process unready.
func newCacheCheck(waitForSync func(ctx context.Context) bool) healthz.Checker {
	var hasSynced atomic.Bool

	return func(r *http.Request) error {
		if !hasSynced.Load() && !waitForSync(r.Context()) {
			return errNotSynced
		}

		hasSynced.Store(true)

		return nil
	}
}

// newMachineSettings returns the settings that apply to every machine. It returns an error if guest.caFile or
// a bootstrap service cannot be read.
func newMachineSettings(cfg config.OperatorConfig, identity identity) (vmspec.Settings, error) {
	out := vmspec.Settings{
		OperatorUID:         identity.uid,
		NamespaceInHostname: cfg.Runners.IncludeNamespaceInHostname,
		GuestURL:            strings.TrimSuffix(cfg.Guest.URL, "/"),
		ReportKey:           identity.reportKey,
		HasDevIDAuthority:   cfg.Identity.DevID.CertFile != "",
		BootstrapServices:   map[string]vmspec.Program{},
	}

	if cfg.Identity.SPIRE.Address != "" {
		out.TrustDomain = cfg.Identity.SPIRE.TrustDomain
	}

	switch {
	case cfg.Guest.CAFile != "":
		var err error
		if out.GuestCABundle, err = newGuestCABundle(cfg.Guest.CAFile); err != nil {
			return vmspec.Settings{}, err
		}
	case identity.webhookAuthority != nil:
		out.GuestCABundle = func() string { return identity.webhookAuthority.pem }
	}

	for arch, file := range cfg.Guest.BootstrapServices {
		program, err := vmspec.OpenProgram(file)
		if err != nil {
			return vmspec.Settings{}, fmt.Errorf("read guest.bootstrapServices[%s]: %w", arch, err)
		}

		out.BootstrapServices[arch] = program
	}

	return out, nil
}
