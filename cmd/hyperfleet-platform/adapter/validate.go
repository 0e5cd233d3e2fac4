// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"encoding/json"
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
)

// report is what validate found; its JSON form is what --output json prints.
type report struct {
	Valid    bool                `json:"valid"`
	Files    []string            `json:"files"`
	Problems strictyaml.Problems `json:"problems"`
	Warnings strictyaml.Problems `json:"warnings"`
}

func newValidate() *cobra.Command {
	var output, namespace string

	cmd := &cobra.Command{
		Use:   "validate FILE...",
		Short: "Check task files, and say everything that is wrong with them",
		Long: `Check task files: fields, expressions, templates, and what contradicts itself. Each
problem is a line with file, line and column. With --config, or ` + task.EnvDeployment + `, the
deployment configuration is checked as well, and what the task files use of it.

With --output rbac it prints the ServiceAccount, the ClusterRole and their binding that an
adapter with these task files needs on its cluster, and on its Open Cluster Management hub:
what the kinds and gates of the files come to, and no more. Problems are on standard error
then.

It ends with 0 if nothing is wrong, 1 if something is, 2 for a command line that can't be
meant. Warnings are about what works and should be written in another way.`,
		RunE: func(cmd *cobra.Command, files []string) error {
			if output != outputRBAC && checkOutput(output) != nil {
				return cli.Usagef("unknown output %q: use text, json or rbac", output)
			}

			if len(files) == 0 {
				return cli.Usage(errors.New("name a task file"))
			}

			if output == outputRBAC {
				return printRBAC(cmd, files, namespace)
			}

			found := validate(cmd, files)
			if err := found.print(cmd.OutOrStdout(), output); err != nil {
				return err
			}

			if !found.Valid {
				return cli.Failed()
			}

			return nil
		},
	}

	cmd.Flags().String("config", "", "deployment configuration (env "+task.EnvDeployment+")")
	cmd.Flags().StringVarP(&output, "output", "o", outputText, "text, json or rbac")
	cmd.Flags().StringVar(&namespace, "namespace", "hyperfleet-system", "of the ServiceAccount, with --output rbac")

	return cmd
}

func validate(cmd *cobra.Command, files []string) *report {
	out := &report{Files: files, Problems: strictyaml.Problems{}, Warnings: strictyaml.Problems{}}

	deployment, err := deploymentOf(cmd, task.Deployment(true))
	out.add("configuration", err)

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

// deploymentOf is the deployment configuration; nil where none is given, or it can't be
// read.
func deploymentOf(cmd *cobra.Command, spec *strictyaml.Spec[adapterapi.Deployment]) (*adapterapi.Deployment, error) {
	if given, err := cmd.Flags().GetString("config"); err == nil && given == "" && os.Getenv(task.EnvDeployment) == "" {
		return nil, nil //nolint:nilnil // there is none to check against
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

func (r *report) print(w io.Writer, output string) error {
	if output == outputJSON {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")

		return encoder.Encode(r)
	}

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
