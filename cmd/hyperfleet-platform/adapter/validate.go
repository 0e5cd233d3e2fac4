// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"

	adapterapi "github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/cmd/internal/version"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/broker"
)

// report is the result of validate. With -o json, validate prints its JSON form.
type report struct {
	Valid    bool                `json:"valid"`
	Files    []string            `json:"files"`
	Problems strictyaml.Problems `json:"problems"`
	Warnings strictyaml.Problems `json:"warnings"`
}

func newValidate() *cobra.Command {
	var (
		output                cli.Output
		namespace, brokerPath string
	)

	cmd := &cobra.Command{
		Use:   "validate FILE...",
		Short: "Validate task files and print all problems",
		Long: `Validate the fields, expressions and templates of task files, and find contradictions. Each
problem is one line with file, line and column. With --config, or ` + task.EnvDeployment + `, the
command also validates the deployment configuration, what the task files use of it, and the
configuration of the broker if there is one.

With --output rbac, the command prints the ServiceAccount, the ClusterRole and the
ClusterRoleBinding that an adapter with these task files needs on its cluster and on its Open
Cluster Management hub. The role has only the permissions that the kinds and gates in the task
files need. In this case, problems go to standard error.

The exit code is 0 if there are no problems, 1 if there are problems, and 2 if the command line
is invalid. A warning is about a deprecated or discouraged form that still works.`,
		RunE: func(cmd *cobra.Command, files []string) error {
			if len(files) == 0 {
				return cli.Usage(errors.New("pass at least one task file"))
			}

			if output.String() == outputRBAC {
				return printRBAC(cmd, files, namespace)
			}

			result := validate(cmd, files, brokerPath)
			if err := output.Print(cmd.OutOrStdout(), cli.Content{Data: result, Print: cli.Sanitized(result.print)}); err != nil {
				return err
			}

			if !result.Valid {
				return cli.Failed()
			}

			return nil
		},
	}

	cmd.Flags().String("config", "", "deployment configuration (env "+task.EnvDeployment+")")
	cmd.Flags().StringVar(&brokerPath, "broker-config", "", "configuration of the broker (env "+broker.EnvFile+")")
	output.AddFlag(cmd, cli.OutputText, cli.OutputJSON, cli.OutputYAML, outputRBAC)
	cmd.Flags().StringVar(&namespace, "namespace", "hyperfleet-system", "namespace of the ServiceAccount, with --output rbac")

	return cmd
}

func validate(cmd *cobra.Command, files []string, brokerPath string) *report {
	out := &report{Files: files, Problems: strictyaml.Problems{}, Warnings: strictyaml.Problems{}}

	deployment, err := loadDeployment(cmd, task.NewDeploymentSpec(task.FileRequired))
	out.add("configuration", err)

	if deployment != nil && deployment.FromBroker() && broker.FindFile(brokerPath) != "" {
		_, err := broker.Load(brokerPath)
		out.add("configuration of the broker", err)
	}

	for _, file := range files {
		loaded, err := task.LoadFile(file, deployment)
		out.add(file, err)

		if loaded != nil {
			out.Warnings = append(out.Warnings, loaded.Warnings...)
		}
	}

	out.Valid = len(out.Problems) == 0

	return out
}

// loadDeployment returns the deployment configuration. It returns nil if neither --config nor the
// environment variable names a file, and nil with an error if the file is invalid.
func loadDeployment(cmd *cobra.Command, spec *strictyaml.Spec[adapterapi.Deployment]) (*adapterapi.Deployment, error) {
	if path, err := cmd.Flags().GetString("config"); err == nil && path == "" && os.Getenv(task.EnvDeployment) == "" {
		return nil, nil //nolint:nilnil // the deployment configuration is optional
	}

	deployment, err := spec.Load(cmd.Flags())
	if err != nil {
		return nil, err
	}

	return deployment, task.CheckFramework(deployment.Adapter.FrameworkVersion, version.Read().Version)
}

func (r *report) add(file string, err error) {
	if err == nil {
		return
	}

	var problems strictyaml.Problems
	if !errors.As(err, &problems) {
		problems = strictyaml.Problems{{File: file, Message: err.Error()}}
	}

	r.Problems = append(r.Problems, problems...)
}

// print prints the report as text.
func (r *report) print(w io.Writer) error {
	for _, warning := range r.Warnings {
		if _, err := fmt.Fprintln(w, "warning:", warning); err != nil {
			return err
		}
	}

	for _, problem := range r.Problems {
		if _, err := fmt.Fprintln(w, "error:", problem); err != nil {
			return err
		}
	}

	_, err := fmt.Fprintf(w, "%s, %s\n",
		english.Plural(len(r.Problems), "error", ""), english.Plural(len(r.Warnings), "warning", ""))

	return err
}
