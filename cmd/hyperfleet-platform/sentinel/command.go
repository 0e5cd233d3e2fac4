// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/cmd/internal/mounted"
	"github.com/hyperfleet/hyperfleet/cmd/internal/signals"
	"github.com/hyperfleet/hyperfleet/cmd/internal/version"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/kit/tracing"
	"github.com/hyperfleet/hyperfleet/platform/broker"
	"github.com/hyperfleet/hyperfleet/platform/client"
	"github.com/hyperfleet/hyperfleet/platform/probes"
	"github.com/hyperfleet/hyperfleet/platform/sentinel"
)

// New returns the command `hyperfleet-platform sentinel`.
func New() *cobra.Command {
	spec := newSpec()
	cmd := &cobra.Command{
		Use:   "sentinel",
		Short: "Send an event to adapters for each resource of the fleet API that must be reconciled",
		Long: `Watch one kind of resource of the fleet API. Send an event for each resource that has changed,
is not reconciled, or has had no event for a long time. Only the leader of the replicas sends
events.`,
		Example: "  hyperfleet-platform sentinel --config sentinel.yaml\n" +
			"  hyperfleet-platform sentinel config validate --config sentinel.yaml",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			files := mounted.NewWatcher(spec.FilePath(cmd.Flags()), func() error { return spec.Check(cmd.Flags()) })

			config, err := spec.Load(cmd.Flags())
			if err != nil {
				return cli.Usagef("sentinel: %w", err)
			}

			return run(cmd.Context(), *config, files, cmd.ErrOrStderr())
		},
	}
	cmd.SetContext(context.Background())
	cmd.AddCommand(newConfig())
	addFlags(cmd, spec)

	return cmd
}

// newConfig returns the command `hyperfleet-platform sentinel config` with its subcommand validate.
func newConfig() *cobra.Command {
	spec := newSpec()
	group := &cobra.Command{Use: "config", Short: "Validate the configuration of sentinel"}
	validate := &cobra.Command{
		Use:   "validate",
		Short: "Validate the configuration and its expressions, and print the effective configuration",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := spec.Load(cmd.Flags())
			if err != nil {
				return cli.Usagef("sentinel: %w", err)
			}

			return strictyaml.Write(cmd.OutOrStdout(), config)
		},
	}
	addFlags(validate, spec)
	group.AddCommand(validate)

	return group
}

func addFlags(cmd *cobra.Command, spec *strictyaml.Spec[platform.Sentinel]) {
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usagef("sentinel: %w", err) })

	if err := spec.AddFlags(cmd.Flags()); err != nil {
		panic(err) // the configuration has a duplicate key; the tests find this
	}
}

// CheckText returns the problems of a configuration, without environment and flags. A missing broker is not a problem,
// because its settings may be in a file of its own (broker.EnvFile).
func CheckText(file string, text []byte) strictyaml.Problems {
	spec := newSpec()
	validate := spec.Validate
	spec.Validate = func(c *platform.Sentinel) error {
		if c.Broker.Type == "" {
			setPlaceholderBroker(&c.Broker)
		}

		return validate(c)
	}

	return spec.CheckText(file, text)
}

// setPlaceholderBroker sets a broker that is valid, but does not exist.
func setPlaceholderBroker(settings *platform.Broker) {
	settings.Type, settings.RabbitMQ.URLFile = platform.BrokerRabbitMQ, "placeholder"
}

func newSpec() *strictyaml.Spec[platform.Sentinel] {
	return &strictyaml.Spec[platform.Sentinel]{
		Default: sentinel.Defaults(),
		EnvFile: "HYPERFLEET_SENTINEL_CONFIG",
		Aliases: map[string]string{"log.level": log.EnvLevel, "broker.type": "BROKER_TYPE"},
		Help: map[string]string{
			"resource_type": "collection to watch, for example clusters",
			"topic":         "topic of the events; default: the resource type",
			"lease":         "name of the lease for leader election",
		},
		Validate: func(c *platform.Sentinel) error {
			if os.Getenv(broker.EnvFile) != "" && c.Broker.Type == "" {
				shared, err := broker.Load("")
				if err != nil {
					return fmt.Errorf("%s: %w", broker.EnvFile, err)
				}

				c.Broker = shared
			}

			return errors.Join(broker.CheckType(c.Broker), sentinel.Validate(c))
		},
	}
}

// run builds Sentinel and runs it until a signal, or until a configuration file changes.
func run(ctx context.Context, config platform.Sentinel, files *mounted.Watcher, diagnostics io.Writer) error {
	// Collect garbage more often to save memory, which each replica needs for each kind. Sentinel allocates
	// mostly list pages and has CPU time to spare.
	cli.SetGCPercent(25)

	level, _ := log.ParseLevel(config.Log.Level)    // validated
	format, _ := log.ParseFormat(config.Log.Format) // validated
	logger := log.New(diagnostics, log.Options{Level: level, Format: format})

	ctx, cancel := files.CancelOnChange(ctx, logger)
	defer cancel()

	ctx, stop := signals.NotifyContext(ctx)
	defer stop()

	info := version.Read()

	endTracing, err := tracing.Start(ctx, tracing.Options{
		Service: "hyperfleet-sentinel", Version: info.Version, Log: logger, Output: diagnostics,
	})
	if err != nil {
		return cli.Usagef("sentinel: %w", err)
	}
	defer endTracing()

	registry, err := metrics.NewRegistry("hyperfleet-platform", info.Version, info.Commit, info.Go)
	if err != nil {
		return fmt.Errorf("sentinel: %w", err)
	}

	s, events, err := newSentinel(ctx, config, logger, registry)
	if err != nil {
		return fmt.Errorf("sentinel: %w", err)
	}
	defer events.Close()

	server, err := probes.Listen(ctx, probes.Options{
		HealthAddress: config.HealthAddress, MetricsAddress: config.MetricsAddress,
		CheckLive: s.CheckLive, CheckReady: s.CheckReady, Gatherer: registry, Log: logger,
	})
	if err != nil {
		return fmt.Errorf("sentinel: %w", err)
	}

	return errors.Join(s.Run(ctx), server.Close(ctx))
}

func newSentinel(
	ctx context.Context, config platform.Sentinel, logger *slog.Logger, registry prometheus.Registerer,
) (*sentinel.Sentinel, *broker.Broker, error) {
	calls, err := metrics.NewCallMetrics(registry, nil)
	if err != nil {
		return nil, nil, err
	}

	api, err := client.New(config.Clients.HyperFleetAPI, client.Options{Calls: calls, UserAgent: "hyperfleet-sentinel"})
	if err != nil {
		return nil, nil, err
	}

	events, err := broker.Open(ctx, config.Broker, logger, registry)
	if err != nil {
		return nil, nil, err
	}

	s, err := sentinel.New(sentinel.Options{Conf: config, API: api, Broker: events, Log: logger, Metrics: registry})
	if err != nil {
		events.Close()

		return nil, nil, err
	}

	return s, events, nil
}
