// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	ctrl "sigs.k8s.io/controller-runtime"

	adapterapi "github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/cmd/internal/mounted"
	"github.com/hyperfleet/hyperfleet/cmd/internal/signals"
	"github.com/hyperfleet/hyperfleet/cmd/internal/version"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/kit/tracing"
	"github.com/hyperfleet/hyperfleet/platform/adapter/feed"
	"github.com/hyperfleet/hyperfleet/platform/adapter/pipeline"
	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
	"github.com/hyperfleet/hyperfleet/platform/adapter/serve"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport/kubernetes"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport/maestro"
	"github.com/hyperfleet/hyperfleet/platform/broker"
	"github.com/hyperfleet/hyperfleet/platform/client"
	"github.com/hyperfleet/hyperfleet/platform/stamp"
)

func newServe() *cobra.Command {
	var taskFile, brokerPath string

	spec := task.NewDeploymentSpec(task.FileRequired)

	cmd := &cobra.Command{
		Use:   "serve --config FILE --task-config FILE",
		Short: "Run an adapter, which handles events of the fleet API",
		Long: `Run an adapter. The adapter reads the change feed of the fleet API or, with events.source:
broker, receives events from Sentinel. It runs the task file for each event and reports the
result to the fleet API.

The broker has its own configuration file, with the key broker as in Sentinel's file. Its path
is --broker-config, or ` + broker.EnvFile + `, or broker.yaml in the working directory.
HYPERFLEET_BROKER_* environment variables override the file.

On SIGTERM, the adapter becomes unready, accepts no more events, and waits up to 8 seconds
for running events. A second signal stops the process immediately.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			files := mounted.NewWatcher(spec.FilePath(cmd.Flags()), func() error {
				deployment, err := spec.Load(cmd.Flags())
				if err == nil {
					_, err = task.LoadFile(taskFile, deployment)
				}

				return err
			})

			deployment, err := spec.Load(cmd.Flags())
			if err != nil {
				return err
			}

			if taskFile == "" {
				return cli.Usage(errors.New("set --task-config (env " + task.EnvTask + ")"))
			}

			var events platform.Broker

			if deployment.FromBroker() {
				if events, err = broker.Load(brokerPath); err != nil {
					return err
				}
			} else if brokerPath != "" {
				return cli.Usage(errors.New("--broker-config needs events.source: broker"))
			}

			return runAdapter(contextOf(cmd), deployment, files, taskFile, events)
		},
	}

	if err := spec.AddFlags(cmd.Flags()); err != nil {
		cmd.RunE = func(*cobra.Command, []string) error { return err }
	}

	cmd.Flags().StringVar(&taskFile, "task-config", os.Getenv(task.EnvTask), "task file (env "+task.EnvTask+")")
	cmd.Flags().StringVar(&brokerPath, "broker-config", "", "configuration of the broker (env "+broker.EnvFile+")")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usage(err) })

	return cmd
}

// runAdapter builds an adapter and runs it until a signal, or until a configuration file changes.
func runAdapter(
	ctx context.Context, deployment *adapterapi.Deployment, files *mounted.Watcher, file string, brokerConfig platform.Broker,
) error {
	// Collect garbage less often, because CPU time during a burst of events matters more than memory. The
	// heap is small.
	cli.SetGCPercent(200)

	info := version.Read()
	logger := newLogger(deployment.Log)

	ctx, cancel := files.CancelOnChange(ctx, logger)
	defer cancel()

	ctx, stop := signals.NotifyContext(ctx)
	defer stop()

	// Options.Output is not set, because standard output has the log in one format.
	endTracing, err := tracing.Start(ctx, tracing.Options{
		Service: "hyperfleet-adapter-" + deployment.Adapter.Name, Version: info.Version, Log: logger,
	})
	if err != nil {
		return err
	}
	defer endTracing()

	loaded, err := loadTask(ctx, file, deployment, info.Version, logger)
	if err != nil {
		return err
	}

	registry, calls, err := newMetrics(info)
	if err != nil {
		return err
	}

	keys, err := stamp.ReadKeys(deployment.IdentityKeyFile)
	if err != nil {
		return fmt.Errorf("identity_key_file: %w", err)
	}

	requeuer := serve.NewRequeuer()

	clients, used, err := newTransports(deployment, loaded, kubernetes.Options{
		Adapter: deployment.Adapter.Name, Calls: calls,
		OnChange: requeuer.EnqueueChange, OnUnread: requeuer.EnqueueIfFailed, Log: logger,
	})
	if err != nil {
		return err
	}

	handle, err := pipeline.New(pipeline.Options{
		Deployment: deployment, Task: loaded, Clients: clients, Keys: keys, Kinds: findKinds(ctx, clients, logger),
		FrameworkVersion: info.Version, Env: taskEnvironment(deployment), Calls: calls, Log: logger,
	})
	if err != nil {
		return err
	}

	events, closeSource, err := newSource(ctx, deployment, loaded, brokerConfig, calls, logger, registry)
	if err != nil {
		return err
	}
	defer closeSource()

	// The watches stop after the running events, because these events read from the watch caches.
	watchCtx, stopWatches := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWatches()

	group, groupCtx := errgroup.WithContext(ctx)
	for _, each := range used {
		group.Go(func() error { return each.Run(watchCtx) })
	}

	group.Go(func() error {
		defer stopWatches()

		return serve.Run(groupCtx, serve.Options{
			Deployment: *deployment, Version: info.Version, Events: events, Handle: handle.Handle,
			CheckClusters: used.checkReady, Requeuer: requeuer, Config: configHandler(deployment), Registry: registry, Log: logger,
		})
	})

	return group.Wait()
}

// newMetrics returns the registry of the metrics, and the metrics of calls.
func newMetrics(info version.Info) (*prometheus.Registry, *metrics.CallMetrics, error) {
	registry, err := metrics.NewRegistry("hyperfleet-platform", info.Version, info.Commit, info.Go)
	if err != nil {
		return nil, nil, err
	}

	calls, err := metrics.NewCallMetrics(registry, nil)

	return registry, calls, err
}

// kindsTimeout limits the search for kinds, which delays the start.
const kindsTimeout = 10 * time.Second

// findKinds finds the kinds of which the adapter has objects on its cluster, also those of entries that the task file no
// longer has. Without the search, these objects stay until the resource is deleted.
func findKinds(ctx context.Context, clients map[string]transport.Client, logger *slog.Logger) *resources.Kinds {
	out := resources.NewKinds()

	cluster, isUsed := clients[transport.Kubernetes].(*kubernetes.Client)
	if !isUsed {
		return out
	}

	ctx, cancel := context.WithTimeout(ctx, kindsTimeout)
	defer cancel()

	kinds, err := cluster.ListOwnKinds(ctx)
	if err != nil {
		logger.WarnContext(ctx, "could not look for objects of entries that the task file no longer has", "error", err)
	}

	for _, kind := range kinds {
		out.Add(transport.Kubernetes, kind)
	}

	return out
}

// loadTask loads the task file and logs its warnings. It returns an error if the configuration requires
// another version of the adapter.
func loadTask(
	ctx context.Context, file string, deployment *adapterapi.Deployment, frameworkVersion string, logger *slog.Logger,
) (*task.Task, error) {
	if err := task.CheckFramework(deployment.Adapter.FrameworkVersion, frameworkVersion); err != nil {
		return nil, err
	}

	loaded, err := task.LoadFile(file, deployment)
	if err != nil {
		return nil, err
	}

	for _, warning := range loaded.Warnings {
		logger.WarnContext(ctx, "task file", "warning", warning.String())
	}

	return loaded, nil
}

// newSource returns the source of events: the broker, or the change feed of the fleet API. The caller must
// call the returned function when no event is running.
func newSource(
	ctx context.Context, deployment *adapterapi.Deployment, loaded *task.Task, brokerConfig platform.Broker,
	calls *metrics.CallMetrics, logger *slog.Logger, registry prometheus.Registerer,
) (serve.Source, func(), error) {
	if deployment.FromBroker() {
		b, err := broker.Open(ctx, brokerConfig, logger, registry)
		if err != nil {
			return nil, nil, err
		}

		return b, b.Close, nil
	}

	api, err := pipeline.NewAPIClient(deployment, client.Options{Calls: calls})
	if err != nil {
		return nil, nil, err
	}

	changes, err := feed.New(feed.Options{
		Deployment: deployment, API: api, TaskDigest: loaded.Digest, Log: logger, Metrics: registry,
	})

	return changes, func() {}, err
}

func newLogger(output adapterapi.LogOutput) *slog.Logger {
	// Both values were validated with the configuration.
	level, _ := log.ParseLevel(output.Level)
	format, _ := log.ParseFormat(output.Format)

	var writer io.Writer = os.Stdout
	if output.Output == "stderr" {
		writer = os.Stderr
	}

	logger := log.New(writer, log.Options{Level: level, Format: format})
	ctrl.SetLogger(log.ToLogr(logger)) // controller-runtime, which runs the watches, has a global logger

	return logger
}

// cluster is a cluster of the adapter's objects. Run runs its watches.
type cluster interface {
	Run(ctx context.Context) error
	CheckReady(ctx context.Context) error
}

type clusters []cluster

// checkReady returns why clusters cannot be used.
func (c clusters) checkReady(ctx context.Context) error {
	errs := make([]error, len(c))

	var checks sync.WaitGroup

	for i, each := range c {
		checks.Go(func() { errs[i] = each.CheckReady(ctx) })
	}

	checks.Wait()

	return errors.Join(errs...)
}

// newTransports returns a client for each transport that the task file uses, and the clusters of the clients.
func newTransports(
	deployment *adapterapi.Deployment, loaded *task.Task, options kubernetes.Options,
) (map[string]transport.Client, clusters, error) {
	isUsed := func(name string) bool {
		return slices.ContainsFunc(loaded.Resources, func(r task.Resource) bool { return r.Transport == name })
	}
	clients := map[string]transport.Client{}

	var used clusters

	if isUsed(transport.Kubernetes) {
		cluster := deployment.Clients.Kubernetes

		config, err := kubernetes.LoadConfig(cluster.KubeConfigPath, cluster.QPS, cluster.Burst)
		if err != nil {
			return nil, nil, err
		}

		localOptions := options
		localOptions.Config, localOptions.Differ = config, loaded.ListReads().Differ

		local, err := kubernetes.New(localOptions)
		if err != nil {
			return nil, nil, err
		}

		clients[transport.Kubernetes] = local
		used = append(used, local)
	}

	if isUsed(transport.Maestro) {
		hub, err := maestro.Open(deployment.Clients.Maestro, deployment.Clients.Kubernetes, options)
		if err != nil {
			return nil, nil, fmt.Errorf("connect to the hub for resources of transport maestro: %w", err)
		}

		clients[transport.Maestro] = hub
		used = append(used, hub)
	}

	return clients, used, nil
}

// configHandler returns a handler that serves the configuration without secrets.
func configHandler(deployment *adapterapi.Deployment) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/yaml")

		if err := strictyaml.Write(w, task.Redact(deployment)); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
}
