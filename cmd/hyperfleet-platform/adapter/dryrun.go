// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"context"
	"errors"
	"io"
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

// dryRunFlags are the flags of dry-run.
type dryRunFlags struct {
	task, event, responses, discovery string

	output  cli.Output
	env     map[string]string
	verbose bool
}

func newDryRun() *cobra.Command {
	var flags dryRunFlags

	cmd := &cobra.Command{
		Use:   "dry-run --task FILE --event FILE",
		Short: "Run a task file for one event, without a cluster, an API or a broker",
		Long: `Run a task file for one event, and print each decision and its reason. The API responses come
from --api-responses, and the objects on the cluster from --discovery. Both flags are optional.
The command sends no requests.

The exit code is 0 if the event succeeds or is skipped, 1 if the event fails or a file is
invalid, and 2 if the command line is invalid.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runDryRun(cmd, flags) },
	}

	set := cmd.Flags()
	set.StringVar(&flags.task, "task", os.Getenv(task.EnvTask), "task file (env "+task.EnvTask+")")
	set.StringVar(&flags.event, "event", "", "file with a CloudEvent in JSON")
	set.StringVar(&flags.responses, "api-responses", "", "file with API responses")
	set.StringVar(&flags.discovery, "discovery", "", "file with the objects on the cluster, by name")
	set.String("config", "", "deployment configuration (env "+task.EnvDeployment+")")
	set.StringToStringVar(&flags.env, "env", nil,
		"additional variables for the task file, NAME=VALUE; the task file also gets the environment variables that the "+
			"deployment configuration lists")
	set.BoolVar(&flags.verbose, "verbose", false, "also print the requests, and the objects on the cluster at the end")
	flags.output.AddFlag(cmd, cli.OutputText, cli.OutputJSON, cli.OutputYAML)
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usage(err) })

	return cmd
}

func runDryRun(cmd *cobra.Command, flags dryRunFlags) error {
	if flags.task == "" || flags.event == "" {
		return cli.Usage(errors.New("set --task and --event"))
	}

	options, err := newDryRunOptions(cmd, flags)
	if err != nil {
		return err
	}

	report, err := dryrun.Run(contextOf(cmd), options)
	if err != nil {
		return err
	}

	err = flags.output.Print(cmd.OutOrStdout(), cli.Content{Data: report, Print: cli.Sanitized(func(out io.Writer) error {
		return report.Text(out, flags.verbose)
	})})
	if err != nil {
		return err
	}

	if report.Result.Status == pipeline.Failed {
		return cli.Failed()
	}

	return nil
}

func newDryRunOptions(cmd *cobra.Command, flags dryRunFlags) (dryrun.Options, error) {
	deployment, err := loadDeployment(cmd, task.NewOfflineDeploymentSpec())
	if err != nil {
		return dryrun.Options{}, err
	}

	loaded, err := task.LoadFile(flags.task, deployment)
	if err != nil {
		return dryrun.Options{}, err
	}

	options := dryrun.Options{
		Task: loaded, Deployment: deployment, Version: version.Read().Version, Env: taskEnvironment(deployment),
		Log: slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	}

	maps.Copy(options.Env, flags.env)

	for _, file := range []struct {
		path    string
		content *[]byte
	}{{flags.event, &options.Event}, {flags.responses, &options.Responses}, {flags.discovery, &options.Discovery}} {
		if file.path == "" {
			continue
		}

		if *file.content, err = os.ReadFile(file.path); err != nil {
			return dryrun.Options{}, err
		}
	}

	return options, nil
}

// taskEnvironment returns the environment variables that the deployment configuration makes available to
// the task file.
func taskEnvironment(deployment *adapterapi.Deployment) map[string]string {
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
