// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	bridgev1 "github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/identity/spire"
	"github.com/hyperfleet/hyperfleet/kit/fence"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/runners"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
)

// reconcileTimeout bounds a pass of the controllers that set no bound of their own.
const reconcileTimeout = 2 * time.Minute

// run is the operator from its configuration to its end.
func run(ctx context.Context, cfg config.OperatorConfig, kube *rest.Config, logger *slog.Logger) error {
	ctrl.SetLogger(log.Logr(logger))

	// The API server's own priority and fairness bounds us; the client's limiter of five
	// requests a second would be what a burst of jobs waits for.
	kube.QPS = -1

	lease := fence.New(clock.RealClock{}, cfg.LeaderElection.LeaseDuration)

	mgr, err := manager(cfg, kube, lease)
	if err != nil {
		return err
	}

	identity, err := identify(ctx, mgr.GetAPIReader(), mgr.GetClient(), cfg)
	if err != nil {
		return err
	}

	settings, err := settings(cfg, identity)
	if err != nil {
		return err
	}

	transports, err := NewTransports(ctrlmetrics.Registry, lease.Writes)
	if err != nil {
		return err
	}

	registry, err := Registry(cfg.Identity.SPIRE, identity.uid, transports.Identity)
	if err != nil {
		return err
	}

	if registry != nil {
		defer registry.Close() //nolint:errcheck // the process ends
	}

	if slices.Contains(cfg.Controllers, config.AreaRunners) {
		if err := addRunners(ctx, mgr, cfg, kube, settings, transports, registry, identity.webhooks, logger); err != nil {
			return err
		}
	}

	if err := registerMetrics(ctrlmetrics.Registry, mgr, cfg.Controllers); err != nil {
		return err
	}

	if err := otherAreas(ctx, mgr, cfg, identity.uid, transports, logger); err != nil {
		return err
	}

	logger.InfoContext(ctx, "operator starts", "operatorUid", identity.uid, "namespace", cfg.Namespace,
		"controllers", cfg.Controllers)

	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run operator: %w", err)
	}

	logger.InfoContext(ctx, "operator has stopped")

	return nil
}

// addRunners sets up the area of runners, with the server for what comes from outside.
func addRunners(
	ctx context.Context, mgr ctrl.Manager, cfg config.OperatorConfig, kube *rest.Config, settings vmspec.Settings,
	transports *Transports, registry *spire.Registry, webhooks *authority, logger *slog.Logger,
) error {
	logStore, err := transports.logStore(cfg.Runners.Logs.Store.CAFile)
	if err != nil {
		return err
	}

	area := &runners.Area{
		Config: cfg.Runners, Namespace: cfg.Namespace, Settings: settings,
		Hypervisors: hypervisors(kube, transports),
		Platforms:   Platforms(),
		Transports: runners.Transports{
			Hypervisor: transports.hypervisor, Platform: transports.platform, LogStore: logStore,
		},
		DevID:        cfg.Identity.DevID,
		Registry:     ctrlmetrics.Registry,
		JobLabels:    runners.JobLabels{Names: cfg.Metrics.JobLabels, Most: cfg.Metrics.MaxJobLabelValues},
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
		return fmt.Errorf("set up runners: %w", err)
	}

	server := &server{cfg: cfg.Webhooks, handler: routes, log: logger, authority: webhooks}
	if err := mgr.Add(server); err != nil {
		return fmt.Errorf("add webhook server: %w", err)
	}

	if err := mgr.AddReadyzCheck("webhooks", server.ready); err != nil {
		return fmt.Errorf("add readiness check: %w", err)
	}

	return nil
}

// otherAreas sets up the areas that need nothing of a machine's guest.
func otherAreas(
	ctx context.Context, mgr ctrl.Manager, cfg config.OperatorConfig, uid string, transports *Transports, logger *slog.Logger,
) error {
	if err := networkingArea(ctx, mgr, cfg, uid, transports, logger); err != nil {
		return err
	}

	if err := bridgeArea(ctx, mgr, cfg, transports, logger); err != nil {
		return err
	}

	return hostsArea(ctx, mgr, cfg, transports)
}

// manager makes it. Renewals of the lease go to the API server past the fence, and all else
// that writes through it, from then on: kube is changed.
func manager(cfg config.OperatorConfig, kube *rest.Config, lease *fence.Fence) (ctrl.Manager, error) {
	renewing := rest.CopyConfig(kube)
	renewing.Wrap(lease.Election)
	// Reviews of who reads the metrics change nothing, and each replica makes them.
	reviewing := rest.CopyConfig(kube)
	kube.Wrap(lease.Writes)

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
		Scheme: scheme,
		// Nobody reads who manages which field: it is half of a claim, and of each of its copies.
		Cache:                         cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
		Metrics:                       metricsOptions(cfg.Metrics, reviewing),
		HealthProbeBindAddress:        cfg.Health.BindAddress,
		Controller:                    ctrlconfig.Controller{ReconciliationTimeout: reconcileTimeout},
		LeaderElection:                election.Enabled,
		LeaderElectionID:              LeaseName(cfg.Controllers),
		LeaderElectionNamespace:       cfg.Namespace,
		LeaderElectionReleaseOnCancel: true,
		LeaderElectionConfig:          renewing,
		LeaseDuration:                 &election.LeaseDuration,
		RenewDeadline:                 &election.RenewDeadline,
		RetryPeriod:                   &election.RetryPeriod,
	})
	if err != nil {
		return nil, fmt.Errorf("make manager: %w", err)
	}

	if err := mgr.AddHealthzCheck("alive", healthz.Ping); err != nil {
		return nil, fmt.Errorf("add health check: %w", err)
	}

	if err := mgr.AddReadyzCheck("caches", synced(mgr.GetCache().WaitForCacheSync)); err != nil {
		return nil, fmt.Errorf("add readiness check: %w", err)
	}

	return mgr, nil
}

// synced is a readiness check that succeeds for good once the cache has synced. Controllers that
// are started later bring lists of their own, and the listeners need none of those.
func synced(caches func(ctx context.Context) bool) healthz.Checker {
	var once atomic.Bool

	return func(r *http.Request) error {
		if !once.Load() && !caches(r.Context()) {
			return errNotSynced
		}

		once.Store(true)

		return nil
	}
}

// settings are what the configuration says of every machine.
func settings(cfg config.OperatorConfig, identity identity) (vmspec.Settings, error) {
	out := vmspec.Settings{
		OperatorUID:         identity.uid,
		NamespaceInHostname: cfg.Runners.IncludeNamespaceInHostname,
		GuestURL:            strings.TrimSuffix(cfg.Guest.URL, "/"),
		ReportKey:           identity.reportKey,
		DevID:               cfg.Identity.DevID.CertFile != "",
		BootstrapServices:   map[string]vmspec.Program{},
	}

	if cfg.Identity.SPIRE.Address != "" {
		out.TrustDomain = cfg.Identity.SPIRE.TrustDomain
	}

	switch {
	case cfg.Guest.CAFile != "":
		var err error
		if out.GuestCABundle, err = guestCAs(cfg.Guest.CAFile); err != nil {
			return vmspec.Settings{}, err
		}
	case identity.webhooks != nil:
		out.GuestCABundle = func() string { return identity.webhooks.pem }
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
