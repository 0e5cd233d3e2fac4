// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"strings"

	"github.com/spf13/cobra"

	adapterapi "github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/cmd/internal/version"
	"github.com/hyperfleet/hyperfleet/platform/adapter/dryrun"
	"github.com/hyperfleet/hyperfleet/platform/adapter/pipeline"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
)

// dryRunFlags are those of dry-run.
type dryRunFlags struct {
	task, event, responses, discovery, output string

	env     map[string]string
	verbose bool
}

func newDryRun() *cobra.Command {
	var flags dryRunFlags

	cmd := &cobra.Command{
		Use:   "dry-run --task FILE --event FILE",
		Short: "Play one event through a task file, without a cluster, an API or a broker",
		Long: `Play one event through a task file, and say what was decided, and why. Answers of the API
come from --api-responses, what is on the cluster from --discovery; both are optional.
Nothing is sent anywhere.

It ends with 0 if the event succeeds or is skipped, 1 if it fails or a file is wrong, 2 for
a command line that can't be meant.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return dryRun(cmd, flags) },
	}

	set := cmd.Flags()
	set.StringVar(&flags.task, "task", os.Getenv(task.EnvTask), "task file (env "+task.EnvTask+")")
	set.StringVar(&flags.event, "event", "", "file with a CloudEvent in JSON")
	set.StringVar(&flags.responses, "api-responses", "", "file with answers of the API")
	set.StringVar(&flags.discovery, "discovery", "", "file with objects of the cluster, by name")
	set.String("config", "", "deployment configuration (env "+task.EnvDeployment+")")
	set.StringToStringVar(&flags.env, "env", nil,
		"variables of the task file, NAME=VALUE, beside those of the environment that the deployment configuration lists")
	set.BoolVar(&flags.verbose, "verbose", false, "also print what was sent and what is on the cluster in the end")
	outputFlag(cmd, &flags.output)
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usage(err) })

	return cmd
}

func dryRun(cmd *cobra.Command, flags dryRunFlags) error {
	if err := checkOutput(flags.output); err != nil {
		return err
	}

	if flags.task == "" || flags.event == "" {
		return cli.Usage(errors.New("--task and --event are needed"))
	}

	options, err := dryRunOptions(cmd, flags)
	if err != nil {
		return err
	}

	report, err := dryrun.Run(contextOf(cmd), options)
	if err != nil {
		return err
	}

	if flags.output == outputJSON {
		err = report.JSON(cmd.OutOrStdout())
	} else {
		err = report.Text(cmd.OutOrStdout(), flags.verbose)
	}

	if err != nil {
		return fmt.Errorf("print trace: %w", err)
	}

	if report.Result.Status == pipeline.Failed {
		return cli.Failed()
	}

	return nil
}

func dryRunOptions(cmd *cobra.Command, flags dryRunFlags) (dryrun.Options, error) {
	deployment, err := deploymentOf(cmd, task.OfflineDeployment())
	if err != nil {
		return dryrun.Options{}, err
	}

	loaded, err := task.LoadFile(flags.task, deployment)
	if err != nil {
		return dryrun.Options{}, err
	}

	options := dryrun.Options{
		Task: loaded, Deployment: deployment, Version: version.Read().Version, Env: environment(deployment),
		Log: slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	}

	maps.Copy(options.Env, flags.env)

	for _, file := range []struct {
		path string
		into *[]byte
	}{{flags.event, &options.Event}, {flags.responses, &options.Responses}, {flags.discovery, &options.Discovery}} {
		if file.path == "" {
			continue
		}

		if *file.into, err = os.ReadFile(file.path); err != nil {
			return dryrun.Options{}, err
		}
	}

	return options, nil
}

// environment are the variables that the deployment lets the task file see.
func environment(deployment *adapterapi.Deployment) map[string]string {
	out := map[string]string{}
	if deployment == nil {
		return out
	}

	for _, name := range deployment.Environment {
		if value, ok := os.LookupEnv(strings.TrimSpace(name)); ok {
			out[name] = value
		}
	}

	return out
}

func contextOf(cmd *cobra.Command) context.Context {
	if ctx := cmd.Context(); ctx != nil {
		return ctx
	}

	return context.Background()
}
