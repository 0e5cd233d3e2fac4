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
	"os/signal"
	"slices"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	ctrl "sigs.k8s.io/controller-runtime"

	adapterapi "github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/cmd/internal/version"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/kit/mounted"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/kit/tracing"
	"github.com/hyperfleet/hyperfleet/platform/adapter/feed"
	"github.com/hyperfleet/hyperfleet/platform/adapter/pipeline"
	"github.com/hyperfleet/hyperfleet/platform/adapter/serve"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport/kubernetes"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport/maestro"
	"github.com/hyperfleet/hyperfleet/platform/broker"
	"github.com/hyperfleet/hyperfleet/platform/client"
	"github.com/hyperfleet/hyperfleet/platform/stamp"
)

const (
	envBroker  = "BROKER_CONFIG_FILE"
	brokerFile = "broker.yaml"
)

// brokerConfig is the file broker.yaml: the key broker, as in Sentinel's file.
type brokerConfig struct {
	Broker platform.Broker `yaml:"broker"`
}

func newServe() *cobra.Command {
	var taskFile, brokerPath string

	spec := task.Deployment(true)

	cmd := &cobra.Command{
		Use:   "serve --config FILE --task-config FILE",
		Short: "Run an adapter: handle events until it is told to end",
		Long: `Run an adapter. It hears what has to be looked at from the fleet API itself, or with
events.source broker from Sentinel, handles each event by the task file, and reports to the
fleet API.

The broker, if there is one, is configured in a file of its own, with the key broker as in
Sentinel's file: --broker-config, or ` + envBroker + `, or broker.yaml in the working directory;
HYPERFLEET_BROKER_* variables go over it.

On SIGTERM it is not ready any more, takes no more events, and lets those in work end, for
30 seconds at most. A second signal ends it at once.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			files := mounted.Beside(spec.File(cmd.Flags()), func() error {
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
				return cli.Usage(errors.New("--task-config is needed (env " + task.EnvTask + ")"))
			}

			var events platform.Broker

			if deployment.FromBroker() {
				if events, err = loadBroker(brokerPath); err != nil {
					return err
				}
			} else if brokerPath != "" {
				return cli.Usage(errors.New("--broker-config goes with events.source: broker"))
			}

			ctx, stop := signal.NotifyContext(contextOf(cmd), syscall.SIGINT, syscall.SIGTERM)
			defer stop()

			// The second signal finds no handler, and ends the process.
			go func() {
				<-ctx.Done()
				stop()
			}()

			return runAdapter(ctx, deployment, files, taskFile, events)
		},
	}

	if err := spec.AddFlags(cmd.Flags()); err != nil {
		cmd.RunE = func(*cobra.Command, []string) error { return err }
	}

	cmd.Flags().StringVar(&taskFile, "task-config", os.Getenv(task.EnvTask), "task file (env "+task.EnvTask+")")
	cmd.Flags().StringVar(&brokerPath, "broker-config", "", "configuration of the broker (env "+envBroker+")")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usage(err) })

	return cmd
}

// loadBroker reads the broker's own file.
func loadBroker(path string) (platform.Broker, error) {
	spec := strictyaml.Spec[brokerConfig]{
		EnvFile: envBroker,
		Aliases: map[string]string{
			"broker.type": "BROKER_TYPE", "broker.rabbitmq.url": "BROKER_RABBITMQ_URL",
		},
		Validate: func(c *brokerConfig) error {
			if c.Broker.Type != platform.BrokerRabbitMQ {
				return strictyaml.ErrorAt("broker.type", "%q: write rabbitmq; without a broker, set events.source: api", c.Broker.Type)
			}

			return nil
		},
	}

	if path == "" && os.Getenv(envBroker) == "" {
		if _, err := os.Stat(brokerFile); err == nil {
			path = brokerFile
		}
	}

	flags := pflag.NewFlagSet("broker", pflag.ContinueOnError)
	if err := errors.Join(spec.AddFlags(flags), flags.Set("config", path)); err != nil {
		return platform.Broker{}, err
	}

	config, err := spec.Load(flags)
	if err != nil {
		return platform.Broker{}, err
	}

	return config.Broker, nil
}

// runAdapter wires an adapter together, and runs it.
func runAdapter(
	ctx context.Context, deployment *adapterapi.Deployment, files *mounted.Files, file string, events platform.Broker,
) error {
	// A burst is worth more than the memory: the heap is small.
	cli.SetGCPercent(200)

	info := version.Read()
	logger := logging(deployment.Log)

	ctx, stop := files.Until(ctx, logger)
	defer stop()

	// Standard output has the log, in one format.
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

	registry, err := metrics.NewRegistry("hyperfleet-platform", info.Version, info.Commit, info.Go)
	if err != nil {
		return err
	}

	calls, err := metrics.NewCalls(registry, nil)
	if err != nil {
		return err
	}

	keys, err := stamp.ReadKeys(deployment.IdentityKeyFile)
	if err != nil {
		return fmt.Errorf("identity_key_file: %w", err)
	}

	looks := serve.NewLooks(nil)

	clients, watches, err := transports(deployment, loaded, kubernetes.Options{
		Adapter: deployment.Adapter.Name, Calls: calls, Changed: looks.Changed, Log: logger,
	})
	if err != nil {
		return err
	}

	handle, err := pipeline.New(pipeline.Options{
		Deployment: deployment, Task: loaded, Clients: clients, Keys: keys, FrameworkVersion: info.Version,
		Env: environment(deployment), Calls: calls, Log: logger,
	})
	if err != nil {
		return err
	}

	from, closeSource, err := source(ctx, deployment, events, calls, logger, registry)
	if err != nil {
		return err
	}
	defer closeSource()

	// The watches end after the events that are in work, which read by them.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()

	group, work := errgroup.WithContext(ctx)
	for _, watch := range watches {
		group.Go(func() error { return watch(life) })
	}

	group.Go(func() error {
		defer end()

		return serve.Run(work, serve.Options{
			Deployment: *deployment, Version: info.Version, Events: from, Handle: handle.Handle,
			Looks: looks, Config: configHandler(deployment), Registry: registry, Log: logger,
		})
	})

	return group.Wait()
}

// loadTask reads the task file, if it is for this version, and logs what is doubtful in it.
func loadTask(
	ctx context.Context, file string, deployment *adapterapi.Deployment, own string, logger *slog.Logger,
) (*task.Task, error) {
	if err := task.CheckFramework(deployment.Adapter.FrameworkVersion, own); err != nil {
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

// source is where events come from, to be closed when none is in work.
func source(
	ctx context.Context, deployment *adapterapi.Deployment, events platform.Broker, calls *metrics.Calls,
	logger *slog.Logger, registry prometheus.Registerer,
) (serve.Source, func(), error) {
	if deployment.FromBroker() {
		b, err := broker.Open(ctx, events, logger, registry)
		if err != nil {
			return nil, nil, err
		}

		return b, b.Close, nil
	}

	api, err := pipeline.APIClient(deployment, client.Options{Calls: calls})
	if err != nil {
		return nil, nil, err
	}

	follows, err := feed.New(feed.Options{Deployment: deployment, API: api, Log: logger, Metrics: registry})

	return follows, func() {}, err
}

func logging(output adapterapi.LogOutput) *slog.Logger {
	// Both were checked with the configuration.
	level, _ := log.ParseLevel(output.Level)
	format, _ := log.ParseFormat(output.Format)

	var to io.Writer = os.Stdout
	if output.Output == "stderr" {
		to = os.Stderr
	}

	logger := log.New(to, log.Options{Level: level, Format: format})
	ctrl.SetLogger(log.Logr(logger)) // the watches' library has a logger of its own

	return logger
}

// transports makes those that the task file uses, with what keeps their watches.
func transports(
	deployment *adapterapi.Deployment, loaded *task.Task, options kubernetes.Options,
) (map[string]transport.Client, []func(context.Context) error, error) {
	uses := func(name string) bool {
		return slices.ContainsFunc(loaded.Resources, func(r task.Resource) bool { return r.Transport == name })
	}
	clients := map[string]transport.Client{}

	var watches []func(context.Context) error

	if uses(transport.Kubernetes) {
		cluster := deployment.Clients.Kubernetes

		config, err := kubernetes.Config(cluster.KubeConfigPath, cluster.QPS, cluster.Burst)
		if err != nil {
			return nil, nil, err
		}

		direct := options
		direct.Config = config

		local, err := kubernetes.New(direct)
		if err != nil {
			return nil, nil, err
		}

		clients[transport.Kubernetes] = local
		watches = append(watches, local.Run)
	}

	if uses(transport.Maestro) {
		hub, err := maestro.Open(deployment.Clients.Maestro, deployment.Clients.Kubernetes, options)
		if err != nil {
			return nil, nil, fmt.Errorf("the task file has resources of transport maestro: %w", err)
		}

		clients[transport.Maestro] = hub
		watches = append(watches, hub.Run)
	}

	return clients, watches, nil
}

// configHandler answers with the configuration, without secrets.
func configHandler(deployment *adapterapi.Deployment) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/yaml")

		if err := strictyaml.Write(w, task.Redacted(deployment)); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
}
