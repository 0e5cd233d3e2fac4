// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/cmd/internal/signals"
	"github.com/hyperfleet/hyperfleet/cmd/internal/version"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/kit/tracing"
	"github.com/hyperfleet/hyperfleet/platform/client"
	"github.com/hyperfleet/hyperfleet/platform/stamp"
	"github.com/hyperfleet/hyperfleet/platform/sweep"
)

// Exit codes of sweep, in addition to those of all commands. exitIncomplete means that the run could not
// check all objects or could not delete all orphans. exitStopped means that a limit stopped the run.
const (
	exitIncomplete = 3
	exitStopped    = 4
)

const minInterval = time.Second

// New returns the command `hyperfleet-platform sweep`.
func New() *cobra.Command {
	var output cli.Output

	spec := newSpec()
	cmd := &cobra.Command{
		Use:   "sweep",
		Short: "Delete objects whose resource was force-deleted from the fleet API",
		Long: `Find objects that adapters created for a resource that the fleet API no longer has. With
--delete, delete them. Sweep deletes an object only if its HMAC proves that an adapter created it
for that resource, and if the API returns a well-formed response that the resource does not exist.

The command runs once and prints its report. The exit code is 0 for a complete run, 1 if the run
failed, 2 if the configuration is invalid, 3 if it could not check all objects or not delete all
orphans, and 4 if a limit stopped it and it deleted nothing. Run it from a CronJob.

With --interval, the command runs until a signal. It prints the report of each run, and logs
failures. Of several replicas, only the one that has the lease of the fleet API sweeps.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := spec.Load(cmd.Flags())
			if err != nil {
				return cli.Usage(err)
			}

			ctx, stop := signals.NotifyContext(cmd.Context())
			defer stop()

			return run(ctx, *config, output, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.SetContext(context.Background())
	output.AddFlag(cmd, cli.OutputText, cli.OutputJSON, cli.OutputYAML)
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usage(err) })

	if err := spec.AddFlags(cmd.Flags()); err != nil {
		panic(err) // the configuration has a duplicate key; the tests find this
	}

	return cmd
}

func newSpec() *strictyaml.Spec[platform.Sweep] {
	return &strictyaml.Spec[platform.Sweep]{
		Default: sweep.Defaults(),
		EnvFile: "HYPERFLEET_SWEEP_CONFIG",
		Aliases: map[string]string{"log.level": log.EnvLevel},
		Help: map[string]string{
			"delete":        "delete orphans; without this flag, sweep only reports them",
			"max_deletions": "maximum number of deletions; a run with more orphans deletes nothing",
			"min_age":       "minimum age of an object; sweep ignores younger objects",
			"interval":      "time between two runs; without it, sweep runs once",
			"lease":         "name of the lease with which replicas elect a leader",
		},
		Validate: validate,
	}
}

func validate(c *platform.Sweep) error {
	var e strictyaml.KeyErrors

	e.Requiref(c.IdentityKeyFile != "", "identity_key_file", "set the path of the key file with which adapters sign objects")
	e.Requiref(c.Clients.HyperFleetAPI.BaseURL != "", "clients.hyperfleet_api.base_url", "set the URL of the fleet API")
	e.Requiref(c.MaxDeletions >= 1, "max_deletions", "must be at least 1: to delete nothing, remove delete")
	e.Requiref(c.MaxShare > 0 && c.MaxShare <= 1, "max_share", "must be above 0 and at most 1")
	e.Requiref(c.MinAge >= 0, "min_age", "must not be negative")
	e.Requiref(c.Interval == 0 || c.Interval >= minInterval, "interval", "must be 0 or at least %s", minInterval)
	e.Requiref(c.Lease != "", "lease", "set the name of the lease")

	_, err := log.ParseLevel(c.Log.Level)
	e.Add(err, "log", "level")

	_, err = log.ParseFormat(c.Log.Format)
	e.Add(err, "log", "format")

	return e.Err()
}

// run runs sweep once, or again after each interval if there is one, and prints the report of each run.
func run(ctx context.Context, config platform.Sweep, output cli.Output, out, diagnostics io.Writer) error {
	// Both values were validated with the configuration.
	level, _ := log.ParseLevel(config.Log.Level)
	format, _ := log.ParseFormat(config.Log.Format)
	logger := log.New(diagnostics, log.Options{Level: level, Format: format})

	endTracing, err := tracing.Start(ctx, tracing.Options{
		Service: "hyperfleet-sweep", Version: version.Read().Version, Log: logger, Output: diagnostics,
	})
	if err != nil {
		return cli.Usage(err)
	}
	defer endTracing()

	options, err := newOptions(config, logger)
	if err != nil {
		return err
	}

	if config.Interval > 0 {
		sweep.Repeat(ctx, options, func(report sweep.Report, err error) {
			if err := finish(report, err, output, out); err != nil {
				logger.Error("sweep failed: try again after the interval", "error", err)
			}
		})

		return nil
	}

	report, err := sweep.Run(ctx, options)

	return finish(report, err, output, out)
}

// finish prints the report of a run, and returns the error of a run that is not complete.
func finish(report sweep.Report, err error, output cli.Output, out io.Writer) error {
	if err != nil {
		return err
	}

	content := cli.Content{Data: report, Print: cli.Sanitized(report.Print)}
	if err := output.Print(out, content); err != nil {
		return err
	}

	switch {
	case report.Stopped != "":
		return cli.WithCode(errors.New("a limit stopped sweep, which deleted nothing: "+report.Stopped), exitStopped)
	case report.IsIncomplete():
		return cli.WithCode(errors.New("sweep could not check all objects or not delete all orphans: see the report"), exitIncomplete)
	default:
		return nil
	}
}

func newOptions(config platform.Sweep, logger *slog.Logger) (sweep.Options, error) {
	keys, err := stamp.ReadKeys(config.IdentityKeyFile)
	if err != nil {
		return sweep.Options{}, err
	}

	api, err := client.New(config.Clients.HyperFleetAPI, client.Options{UserAgent: "hyperfleet-sweep"})
	if err != nil {
		return sweep.Options{}, err
	}

	kube, err := credential.LoadKubeconfig(config.KubeConfigPath)
	if err != nil {
		return sweep.Options{}, fmt.Errorf("kube_config_path: %w", err)
	}

	return sweep.Options{Config: config, Kube: kube, API: api, Keys: keys, Log: logger}, nil
}
