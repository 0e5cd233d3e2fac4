// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/cmd/internal/version"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/kit/tracing"
	"github.com/hyperfleet/hyperfleet/platform/client"
	"github.com/hyperfleet/hyperfleet/platform/stamp"
	"github.com/hyperfleet/hyperfleet/platform/sweep"
)

// Exit codes beside those of all commands: a run could not look at everything or delete all
// that it was to; a limit stopped it.
const (
	exitIncomplete = 3
	exitStopped    = 4
)

const (
	outputText = "text"
	outputJSON = "json"
)

// New makes the command.
func New() *cobra.Command {
	spec := spec()
	output := outputText

	cmd := &cobra.Command{
		Use:   "sweep",
		Short: "Remove objects whose resource was removed from the fleet API by force",
		Long: `Find objects that adapters made for a resource that the fleet API has no more, and, with
--delete, delete them. An object goes only if its HMAC proves that an adapter made it for
that resource, and the API says, well formed, that there is no such resource.

It runs once, prints its report and ends: with 0 if all is well, 1 if it could not run, 2
for an invalid configuration, 3 if it could not look at everything or not delete all, 4 if a
limit stopped it and nothing was deleted. Run it from a CronJob.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != outputText && output != outputJSON {
				return cli.Usagef("unknown output %q: use text or json", output)
			}

			config, err := spec.Load(cmd.Flags())
			if err != nil {
				return cli.Usage(err)
			}

			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()

			return run(ctx, *config, output, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.SetContext(context.Background())
	cmd.Flags().StringVar(&output, "output", outputText, "how the report is printed: text, or one JSON object")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usage(err) })

	if err := spec.AddFlags(cmd.Flags()); err != nil {
		panic(err) // the configuration has two keys of one name: tests make the command
	}

	return cmd
}

func spec() *strictyaml.Spec[platform.Sweep] {
	return &strictyaml.Spec[platform.Sweep]{
		Default: sweep.Defaults(),
		EnvFile: "HYPERFLEET_SWEEP_CONFIG",
		Aliases: map[string]string{"log.level": log.EnvLevel},
		Help: map[string]string{
			"delete":        "delete what is found; without it, sweep only reports",
			"max_deletions": "a run that would delete more deletes nothing",
			"min_age":       "younger objects are left alone",
		},
		Validate: validate,
	}
}

func validate(c *platform.Sweep) error {
	var errs []error

	wrong := func(bad bool, key, text string) {
		if bad {
			errs = append(errs, strictyaml.ErrorAt(key, "%s", text))
		}
	}
	wrong(c.IdentityKeyFile == "", "identity_key_file", "name the file with the key that adapters stamp with")
	wrong(c.Clients.HyperFleetAPI.BaseURL == "", "clients.hyperfleet_api.base_url", "say where the fleet API is")
	wrong(c.MaxDeletions < 1, "max_deletions", "at least 1; leave delete out to delete nothing")
	wrong(c.MaxShare <= 0 || c.MaxShare > 1, "max_share", "a number above 0, and at most 1")
	wrong(c.MinAge < 0, "min_age", "it can't be negative")

	if _, err := log.ParseLevel(c.Log.Level); err != nil {
		errs = append(errs, strictyaml.ErrorAt("log.level", "%w", err))
	}

	if _, err := log.ParseFormat(c.Log.Format); err != nil {
		errs = append(errs, strictyaml.ErrorAt("log.format", "%w", err))
	}

	return errors.Join(errs...)
}

// run wires sweep together, and prints the report.
func run(ctx context.Context, config platform.Sweep, output string, out, diagnostics io.Writer) error {
	// Both were checked with the configuration.
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

	options, err := options(config, logger)
	if err != nil {
		return err
	}

	report, err := sweep.Run(ctx, options)
	if err != nil {
		return err
	}

	if err := write(out, &report, output); err != nil {
		return fmt.Errorf("print report: %w", err)
	}

	switch {
	case report.Stopped != "":
		return cli.WithCode(errors.New("sweep was stopped by a limit, and deleted nothing: "+report.Stopped), exitStopped)
	case report.Incomplete():
		return cli.WithCode(errors.New("sweep could not look at everything, or not delete all; the report says what"), exitIncomplete)
	default:
		return nil
	}
}

func options(config platform.Sweep, logger *slog.Logger) (sweep.Options, error) {
	keys, err := stamp.ReadKeys(config.IdentityKeyFile)
	if err != nil {
		return sweep.Options{}, err
	}

	api, err := client.New(config.Clients.HyperFleetAPI, client.Options{UserAgent: "hyperfleet-sweep"})
	if err != nil {
		return sweep.Options{}, err
	}

	kube, err := clientcmd.BuildConfigFromFlags("", config.KubeConfigPath)
	if err != nil {
		return sweep.Options{}, fmt.Errorf("kube_config_path: %w", err)
	}

	return sweep.Options{Config: config, Kube: kube, API: api, Keys: keys, Log: logger}, nil
}

func write(out io.Writer, report *sweep.Report, output string) error {
	if output == outputJSON {
		return json.NewEncoder(out).Encode(report)
	}

	return report.Print(out)
}
