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

// checkTimeout limits one check. The time for answers is not limited.
const checkTimeout = time.Minute

// options holds the flags of the command.
type options struct {
	answers

	dir                                          string
	caFile                                       string
	tokenSecretFile, gitHubTokenFile, appKeyFile string
	skipChecks                                   bool
}

// New returns the command `hyperfleet init`.
func New() *cobra.Command {
	var o options

	cmd := &cobra.Command{
		Use:   "init",
		Short: "Ask for a hypervisor and a CI platform, check both, and write the manifests of a first fleet",
		Long: `Ask for what a first fleet of runners needs: a Proxmox VE cluster with an API token, and an
organization or a repository on GitHub with a token or a GitHub App. The command checks each answer
in the same way as the operator, and shows what is wrong and how to fix it. Then it writes two files:
fleet.yaml, which you can keep in a repository, and secrets.yaml. It applies nothing to the cluster,
and changes nothing on Proxmox VE or GitHub.

Every question has a flag. Without a terminal, the command asks nothing, and lists all missing flags.
It reads secrets from files, so that they do not appear in the list of processes.`,
		Example: `  hyperfleet init
  hyperfleet init --endpoint pve.example.com --token-id hyperfleet@pve!operator --token-secret-file pve-token \
    --organization my-org --github-token-file github-token --dir my-fleet`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("init: the command takes no arguments: use flags to answer questions")
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
	flags.StringVar(&o.Endpoint, "endpoint", "", "endpoint of Proxmox VE: a host, or a URL such as https://pve.example.com:8006")
	flags.StringVar(&o.Fingerprint, "fingerprint", "",
		"SHA-256 fingerprint of the Proxmox VE certificate; only needed if this machine does not trust its CA")
	flags.StringVar(&o.caFile, "ca-file", "", "file with the CA of the Proxmox VE certificate in PEM, instead of a fingerprint")
	flags.StringVar(&o.TokenID, "token-id", "", "ID of the Proxmox VE API token, such as hyperfleet@pve!operator")
	flags.StringVar(&o.tokenSecretFile, "token-secret-file", "", "file with the secret of the Proxmox VE API token")
	flags.StringVar(&o.Template, "template", "hyperfleet-runner", "name of the Proxmox VE template for machines")
	flags.IntVar(&o.CPU, "cpu", 4, "number of cores of each machine")
	flags.StringVar(&o.Memory, "memory", "8Gi", "memory of each machine")
	flags.StringVar(&o.Organization, "organization", "", "GitHub organization whose jobs the fleet runs")
	flags.StringVar(&o.Repository, "repository", "", "GitHub repository, as owner/name, instead of an organization")
	flags.StringVar(&o.GitHubURL, "github-url", "", "API URL of a GitHub Enterprise Server; default: the API of github.com")
	flags.StringVar(&o.gitHubTokenFile, "github-token-file", "", "file with a GitHub token")
	flags.StringVar(&o.AppID, "app-id", "", "ID of a GitHub App, instead of a token")
	flags.StringVar(&o.InstallationID, "installation-id", "", "installation ID of the GitHub App")
	flags.StringVar(&o.appKeyFile, "app-key-file", "", "file with the private key of the GitHub App")
	flags.StringSliceVar(&o.Labels, "labels", []string{"linux", "x64"}, "labels of the jobs that the fleet runs")
	flags.IntVar(&o.MaxMachines, "max-machines", 10, "maximum number of machines")
	flags.StringVar(&o.Cluster, "cluster", "proxmox", "name of the HypervisorCluster")
	flags.StringVarP(&o.Namespace, "namespace", "n", "ci", "namespace of the template and the pool")
	flags.StringVar(&o.OperatorNamespace, "operator-namespace", config.Default().Namespace, "namespace that the operator runs in")
	flags.StringVar(&o.dir, "dir", "fleet", "folder to write the files to")
	flags.BoolVar(&o.skipChecks, "skip-checks", false, "skip all checks; for machines that cannot reach Proxmox VE or GitHub")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usage(err) })
}

// run asks the questions, checks the answers, and writes the files.
func (o *options) run(cmd *cobra.Command) error {
	if err := o.readFiles(); err != nil {
		return err
	}

	prompt := &prompter{in: cmd.InOrStdin(), out: cmd.OutOrStdout()}
	if file, ok := prompt.in.(*os.File); ok {
		prompt.terminal = term.IsTerminal(int(file.Fd()))
	}

	if err := o.checkNoFiles(); err != nil {
		return err
	}

	if missing := append(o.hypervisorQuestions(), o.platformQuestions()...); !prompt.terminal {
		if err := prompt.askAll(missing); err != nil {
			return err
		}
	}

	for _, part := range []struct {
		name    string
		missing func() []question
		check   func(context.Context) (string, error)
	}{
		{"Proxmox VE", o.hypervisorQuestions, o.verifyHypervisor},
		{"GitHub", o.platformQuestions, o.verifyPlatform},
	} {
		if err := o.askAndCheck(cmd, prompt, part.name, part.missing, part.check); err != nil {
			return err
		}
	}

	var err error
	if o.Endpoint, err = normalizeEndpoint(o.Endpoint); err != nil {
		return err
	}

	if o.WebhookSecret == "" {
		raw := make([]byte, 32)
		_, _ = rand.Read(raw) // crypto/rand never returns an error
		o.WebhookSecret = hex.EncodeToString(raw)
	}

	if err := o.writeFiles(o.dir); err != nil {
		return err
	}

	fmt.Fprintf(prompt.out, "Wrote %s/%s and %s/%s.\n\nNext steps:\n\n"+
		"    kubectl apply --server-side -f %s\n    hyperfleet doctor\n\n"+
		"Configure the webhook on GitHub with the secret in %s/%s, as docs/guides/github.md describes.\n",
		o.dir, fleetFile, o.dir, secretsFile, o.dir, o.dir, secretsFile)

	if o.GitHubURL != "" {
		fmt.Fprintf(
			prompt.out,
			"The operator calls only servers that its configuration allows: add %s to runners.platformURLs.\n",
			o.GitHubURL,
		)
	}

	return nil
}

// askAndCheck asks the missing questions about Proxmox VE or GitHub and checks the answers. With a terminal
// it repeats this until the check succeeds. Without a terminal it returns the first error.
func (o *options) askAndCheck(
	cmd *cobra.Command, prompt *prompter, name string, missing func() []question, check func(context.Context) (string, error),
) error {
	for {
		if err := prompt.askAll(missing()); err != nil {
			return err
		}

		if o.skipChecks {
			return nil
		}

		result, err := runCheck(cmd, check)

		var unknown *unknownCertificateError
		if errors.As(err, &unknown) && prompt.terminal {
			if err := prompt.confirm(unknown.question()); err != nil {
				return err
			}

			o.Fingerprint = unknown.fingerprint

			continue
		}

		if err == nil {
			fmt.Fprintf(prompt.out, "%s: %s\n", name, result)

			return nil
		}

		if !prompt.terminal {
			return err
		}

		fmt.Fprintf(prompt.out, "%s: %v\n", name, err)
		o.clearAnswers(name)
	}
}

// runCheck runs a check with checkTimeout. An interrupt cancels the check. While the command waits for an
// answer, an interrupt ends the program.
func runCheck(cmd *cobra.Command, check func(context.Context) (string, error)) (string, error) {
	ctx, stop := cli.WithTimeout(cmd, checkTimeout)
	defer stop()

	return check(ctx)
}

// clearAnswers clears the answers about GitHub or Proxmox VE, so that the command asks for them again.
func (o *options) clearAnswers(name string) {
	if name == "GitHub" {
		o.Organization, o.Repository, o.GitHubToken = "", "", ""

		return
	}

	o.Endpoint, o.Fingerprint, o.TokenID, o.TokenSecret, o.Template = "", "", "", "", ""
}

// readFiles reads the files that flags name, and validates the flags.
func (o *options) readFiles() error {
	for _, input := range []struct {
		flag, file string
		target     *string
	}{
		{"token-secret-file", o.tokenSecretFile, &o.TokenSecret},
		{"github-token-file", o.gitHubTokenFile, &o.GitHubToken},
		{"app-key-file", o.appKeyFile, &o.AppKey},
	} {
		if input.file == "" {
			continue
		}

		text, err := os.ReadFile(input.file)
		if err != nil {
			return cli.Usagef("--%s: %w", input.flag, err)
		}

		if *input.target = strings.TrimSpace(string(text)); *input.target == "" {
			return cli.Usagef("--%s: %s is empty", input.flag, input.file)
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

// validate rejects flags that are invalid or that conflict with each other.
func (o *options) validate() error {
	switch {
	case o.Organization != "" && o.Repository != "":
		return cli.Usagef("--organization and --repository are mutually exclusive: use one of them")
	case o.Repository != "" && strings.Count(o.Repository, "/") != 1:
		return cli.Usagef("--repository %s: give owner/name", o.Repository)
	case o.Fingerprint != "" && o.caFile != "":
		return cli.Usagef("--fingerprint and --ca-file are mutually exclusive: use one of them")
	case (o.AppID != "" || o.InstallationID != "" || o.AppKey != "") && (o.AppID == "" || o.InstallationID == "" || o.AppKey == ""):
		return cli.Usagef("a GitHub App needs all of --app-id, --installation-id and --app-key-file")
	case !isSize(o.Memory):
		return cli.Usagef("--memory %s: give a size such as 8Gi", o.Memory)
	case o.MaxMachines < 1:
		return cli.Usagef("--max-machines %d: give a number of at least 1", o.MaxMachines)
	}

	if _, err := hypervisor.NewTLSConfig(&v1alpha1.HypervisorTLS{Fingerprint: o.Fingerprint}, nil, nil); err != nil {
		return cli.Usagef("--fingerprint %s: %w", o.Fingerprint, errors.Unwrap(err))
	}

	if _, err := hypervisor.NewTLSConfig(&v1alpha1.HypervisorTLS{CABundle: o.CABundle}, nil, nil); err != nil {
		return cli.Usagef("--ca-file %s: %w", o.caFile, errors.Unwrap(err))
	}

	return nil
}
