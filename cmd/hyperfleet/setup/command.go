// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package setup

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/api/resource"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// checkTimeout bounds one check. People may think for as long as they like.
const checkTimeout = time.Minute

// options are the flags.
type options struct {
	answers

	dir                                          string
	caFile                                       string
	tokenSecretFile, gitHubTokenFile, appKeyFile string
	skipChecks                                   bool
}

// New makes the command.
func New() *cobra.Command {
	var o options

	cmd := &cobra.Command{
		Use:   "init",
		Short: "Ask for a hypervisor and a CI platform, try them, and write the manifests of a first fleet",
		Long: `Ask for what a first fleet of runners needs: a Proxmox VE and a token for it, an organisation or
a repository on GitHub and a token or an App for it. Each answer is tried as the operator will
try it, and what is wrong is told with its fix. Then two files are written: fleet.yaml, to keep,
and secrets.yaml. Nothing is applied, and nothing is changed on either side.

Every question has a flag. Without a terminal nothing is asked, and what is missing is told at
once. Secrets are read from files, so that they are in no list of processes.`,
		Example: `  hyperfleet init
  hyperfleet init --endpoint pve.example.com --token-id hyperfleet@pve!operator --token-secret-file pve-token \
    --organization my-org --github-token-file github-token --dir my-fleet`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("init: it takes no argument: every answer has a flag")
			}

			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.run(cmd); err != nil {
				return fmt.Errorf("init: %w", err)
			}

			return nil
		},
	}
	o.addFlags(cmd)

	return cmd
}

func (o *options) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.Endpoint, "endpoint", "", "Proxmox VE: a host, or a URL such as https://pve.example.com:8006")
	flags.StringVar(&o.Fingerprint, "fingerprint", "",
		"SHA-256 fingerprint of its certificate; default: none where its authority is trusted, else it is asked for")
	flags.StringVar(&o.caFile, "ca-file", "", "file with the authority of its certificate, in PEM, in place of a fingerprint")
	flags.StringVar(&o.TokenID, "token-id", "", "API token, such as hyperfleet@pve!operator")
	flags.StringVar(&o.tokenSecretFile, "token-secret-file", "", "file with the API token's secret")
	flags.StringVar(&o.Template, "template", "hyperfleet-runner", "name of the template that machines are clones of")
	flags.IntVar(&o.CPU, "cpu", 4, "cores of a machine")
	flags.StringVar(&o.Memory, "memory", "8Gi", "memory of a machine")
	flags.StringVar(&o.Organization, "organization", "", "organisation on GitHub whose jobs are run")
	flags.StringVar(&o.Repository, "repository", "", "one repository, owner/name, in place of an organisation")
	flags.StringVar(&o.GitHubURL, "github-url", "", "API of a GitHub Enterprise Server; default: github.com's")
	flags.StringVar(&o.gitHubTokenFile, "github-token-file", "", "file with a token of GitHub")
	flags.StringVar(&o.AppID, "app-id", "", "GitHub App, in place of a token")
	flags.StringVar(&o.InstallationID, "installation-id", "", "installation of the GitHub App")
	flags.StringVar(&o.appKeyFile, "app-key-file", "", "file with the private key of the GitHub App")
	flags.StringSliceVar(&o.Labels, "labels", []string{"linux", "x64"}, "labels of the jobs that are run")
	flags.IntVar(&o.MaxMachines, "max-machines", 10, "how many machines there may be at once")
	flags.StringVar(&o.Cluster, "cluster", "proxmox", "name of the HypervisorCluster")
	flags.StringVarP(&o.Namespace, "namespace", "n", "ci", "namespace of the template and the pool")
	flags.StringVar(&o.OperatorNamespace, "operator-namespace", config.Default().Namespace, "namespace that the operator runs in")
	flags.StringVar(&o.dir, "dir", "fleet", "folder that the files are written to")
	flags.BoolVar(&o.skipChecks, "skip-checks", false, "try nothing: for a machine that reaches neither side")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usage(err) })
}

// run asks, checks and writes.
func (o *options) run(cmd *cobra.Command) error {
	if err := o.readFiles(); err != nil {
		return err
	}

	ask := &asker{in: cmd.InOrStdin(), out: cmd.OutOrStdout()}
	if file, ok := ask.in.(*os.File); ok {
		ask.terminal = term.IsTerminal(int(file.Fd()))
	}

	if err := o.vacant(); err != nil {
		return err
	}

	if missing := append(o.hypervisorQuestions(), o.platformQuestions()...); !ask.terminal {
		if err := ask.all(missing); err != nil {
			return err
		}
	}

	for _, part := range []struct {
		name    string
		missing func() []question
		check   func(context.Context) (string, error)
	}{
		{"Proxmox VE", o.hypervisorQuestions, o.tryHypervisor},
		{"GitHub", o.platformQuestions, o.tryPlatform},
	} {
		if err := o.settle(cmd, ask, part.name, part.missing, part.check); err != nil {
			return err
		}
	}

	var err error
	if o.Endpoint, err = apiURL(o.Endpoint); err != nil {
		return err
	}

	if o.WebhookSecret == "" {
		raw := make([]byte, 32)
		_, _ = rand.Read(raw) // it never fails
		o.WebhookSecret = hex.EncodeToString(raw)
	}

	if err := o.write(o.dir); err != nil {
		return err
	}

	fmt.Fprintf(ask.out, "written: %s/%s, %s/%s\n\nNext:\n\n    kubectl apply --server-side -f %s\n    hyperfleet doctor\n\n"+
		"The webhook on GitHub takes the secret in %s/%s; docs/guides/github.md says the rest.\n",
		o.dir, fleetFile, o.dir, secretsFile, o.dir, o.dir, secretsFile)

	if o.GitHubURL != "" {
		fmt.Fprintf(
			ask.out,
			"The operator calls a server of yours only if its configuration lists it: add %s to runners.platformURLs.\n",
			o.GitHubURL,
		)
	}

	return nil
}

// settle asks what is missing of one side, and tries it, until it is right or nobody is there
// to ask.
func (o *options) settle(
	cmd *cobra.Command, ask *asker, name string, missing func() []question, check func(context.Context) (string, error),
) error {
	for {
		if err := ask.all(missing()); err != nil {
			return err
		}

		if o.skipChecks {
			return nil
		}

		said, err := bounded(cmd, check)

		var unknown *unknownCertificateError
		if errors.As(err, &unknown) && ask.terminal {
			if err := ask.confirm(unknown.question()); err != nil {
				return err
			}

			o.Fingerprint = unknown.fingerprint

			continue
		}

		if err == nil {
			fmt.Fprintf(ask.out, "%s: %s\n", name, said)

			return nil
		}

		if !ask.terminal {
			return err
		}

		fmt.Fprintf(ask.out, "%s: %v\n", name, err)
		o.forget(name)
	}
}

// bounded checks, until it takes too long or is interrupted. While somebody is asked, an
// interrupt ends the program.
func bounded(cmd *cobra.Command, check func(context.Context) (string, error)) (string, error) {
	ctx, stop := cli.Bounded(cmd, checkTimeout)
	defer stop()

	return check(ctx)
}

// forget has the answers of one side asked for again.
func (o *options) forget(name string) {
	if name == "GitHub" {
		o.Organization, o.Repository, o.GitHubToken = "", "", ""

		return
	}

	o.Endpoint, o.Fingerprint, o.TokenID, o.TokenSecret, o.Template = "", "", "", "", ""
}

// readFiles reads what flags name files for.
func (o *options) readFiles() error {
	for _, one := range []struct {
		flag, file string
		into       *string
	}{
		{"token-secret-file", o.tokenSecretFile, &o.TokenSecret},
		{"github-token-file", o.gitHubTokenFile, &o.GitHubToken},
		{"app-key-file", o.appKeyFile, &o.AppKey},
	} {
		if one.file == "" {
			continue
		}

		text, err := os.ReadFile(one.file)
		if err != nil {
			return cli.Usagef("--%s: %w", one.flag, err)
		}

		if *one.into = strings.TrimSpace(string(text)); *one.into == "" {
			return cli.Usagef("--%s: %s is empty", one.flag, one.file)
		}
	}

	if o.caFile != "" {
		var err error
		if o.CABundle, err = os.ReadFile(o.caFile); err != nil {
			return cli.Usagef("--ca-file: %w", err)
		}
	}

	return o.validate()
}

func isSize(text string) bool {
	size, err := resource.ParseQuantity(text)

	return err == nil && size.Sign() > 0
}

// validate refuses flags that don't go together.
func (o *options) validate() error {
	switch {
	case o.Organization != "" && o.Repository != "":
		return cli.Usagef("--organization and --repository: give one of them")
	case o.Repository != "" && strings.Count(o.Repository, "/") != 1:
		return cli.Usagef("--repository %s: write owner/name", o.Repository)
	case o.Fingerprint != "" && o.caFile != "":
		return cli.Usagef("--fingerprint and --ca-file: give one of them")
	case (o.AppID != "" || o.InstallationID != "" || o.AppKey != "") && (o.AppID == "" || o.InstallationID == "" || o.AppKey == ""):
		return cli.Usagef("a GitHub App takes --app-id, --installation-id and --app-key-file together")
	case !isSize(o.Memory):
		return cli.Usagef("--memory %s: write a size such as 8Gi", o.Memory)
	case o.MaxMachines < 1:
		return cli.Usagef("--max-machines %d: at least 1", o.MaxMachines)
	}

	if _, err := hypervisor.TLSConfig(&v1alpha1.HypervisorTLS{Fingerprint: o.Fingerprint}, nil, nil); err != nil {
		return cli.Usagef("--fingerprint %s: %w", o.Fingerprint, errors.Unwrap(err))
	}

	if _, err := hypervisor.TLSConfig(&v1alpha1.HypervisorTLS{CABundle: o.CABundle}, nil, nil); err != nil {
		return cli.Usagef("--ca-file %s: %w", o.caFile, errors.Unwrap(err))
	}

	return nil
}
