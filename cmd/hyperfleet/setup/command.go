// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package setup

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/cmd/internal/screen"
	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// checkTimeout limits one check. The time for answers is not limited.
const checkTimeout = time.Minute

// partGitHub is the name of the questions about GitHub.
const partGitHub = "GitHub"

// options holds the flags of the command.
type options struct {
	answers

	dir, fromFile                                string
	caFile                                       string
	tokenSecretFile, gitHubTokenFile, appKeyFile string
	clientCertFile, clientKeyFile, sshKeyFile    string
	skipChecks                                   bool
	// former has the answers that a check has rejected.
	former map[*string]string
	// acceptedFingerprint is the fingerprint that the user has accepted.
	acceptedFingerprint string
	// asksTemplate is true after a check has failed, so that the command also asks for the template.
	asksTemplate bool
}

// New returns the command `hyperfleet init`.
func New() *cobra.Command {
	var o options

	cmd := &cobra.Command{
		Use:   "init",
		Short: "Ask for a hypervisor and a CI platform, check both, and write the manifests of a first fleet",
		Long: `Ask for what a first fleet of runners needs: a Proxmox VE cluster with an API token, or a libvirt
host with a client certificate or an SSH key, and an organization or a repository on GitHub with a
token or a GitHub App. The endpoint says which hypervisor it is. The command checks each answer
in the same way as the operator, and shows what is wrong and how to fix it. Then it writes two files:
fleet.yaml, which you can keep in a repository, and secrets.yaml. It applies nothing to the cluster,
and changes nothing on Proxmox VE or GitHub.

Every question has a flag. Without a terminal, the command asks nothing, and lists all missing flags.
It reads secrets from files, so that they do not appear in the list of processes.`,
		Example: `  hyperfleet init
  hyperfleet init --endpoint pve.example.com --token-id hyperfleet@pve!operator --token-secret-file pve-token \
    --organization my-org --github-token-file github-token --dir my-fleet
  hyperfleet init --endpoint qemu+ssh://hyperfleet@host-1.example.com/system --ssh-key-file id_ed25519 \
    --ssh-host-key SHA256:... --template runner.qcow2 --organization my-org --github-token-file github-token`,
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

// The templates if the user names none: on Proxmox VE, with Windows on Proxmox VE (as in deploy/proxmox/packer/windows),
// and on libvirt.
const (
	defaultTemplate        = "hyperfleet-runner"
	defaultWindowsTemplate = "windows-runner"
	defaultVolume          = "runner.qcow2"
)

// defaultLabels returns the labels of jobs for Linux.
func defaultLabels() []string { return []string{v1alpha1.OSLinux, "x64"} }

func (o *options) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.Endpoint, "endpoint", "", "endpoint of Proxmox VE (a host, or a URL such as https://pve.example.com:8006), "+
		"or the URI of a libvirt host, such as qemu+tls://host-1.example.com/system")
	flags.StringVar(&o.Fingerprint, "fingerprint", "",
		"SHA-256 fingerprint of the Proxmox VE certificate; only needed if this machine does not trust its CA")
	flags.StringVar(&o.caFile, "ca-file", "", "file with the CA of the Proxmox VE certificate in PEM, instead of a fingerprint; "+
		"or the CA of the libvirt host's certificate")
	flags.StringVar(&o.TokenID, "token-id", "", "ID of the Proxmox VE API token, such as hyperfleet@pve!operator")
	flags.StringVar(&o.tokenSecretFile, "token-secret-file", "", "file with the secret of the Proxmox VE API token")
	flags.StringVar(&o.clientCertFile, "client-cert-file", "", "libvirt over TLS: file with the operator's client certificate")
	flags.StringVar(&o.clientKeyFile, "client-key-file", "", "libvirt over TLS: file with the private key of the certificate")
	flags.StringVar(&o.sshKeyFile, "ssh-key-file", "", "libvirt over SSH: file with the operator's private key")
	flags.StringVar(&o.SSHHostKey, "ssh-host-key", "",
		"libvirt over SSH: fingerprint of the host's key, as ssh-keygen -lf prints it")
	flags.StringVar(&o.Pool, "storage-pool", "default", "libvirt: storage pool of the template and the machines")
	flags.StringVar(&o.Bridge, "bridge", "", "libvirt: bridge of the machines; default: each machine has a network of its own")
	flags.StringVar(&o.Template, "template", "",
		"name of the Proxmox VE template (default: "+defaultTemplate+", with --os windows "+defaultWindowsTemplate+
			"), or of the libvirt volume (default: "+defaultVolume+")")
	flags.StringVar(&o.OS, "os", "", "operating system of the template, linux or windows; default: what Proxmox VE records for it, "+
		"otherwise linux")
	flags.IntVar(&o.CPU, "cpu", 4, "number of cores of each machine")
	flags.StringVar(&o.Memory, "memory", "8Gi", "memory of each machine")
	flags.StringVar(&o.Organization, "organization", "", "GitHub organization whose jobs the fleet runs")
	flags.StringVar(&o.Repository, "repository", "", "GitHub repository, as owner/name, instead of an organization")
	flags.StringVar(&o.GitHubURL, "github-url", "", "API URL of a GitHub Enterprise Server; default: the API of github.com")
	flags.StringVar(&o.gitHubTokenFile, "github-token-file", "", "file with a GitHub token")
	flags.StringVar(&o.AppID, "app-id", "", "ID of a GitHub App, instead of a token")
	flags.StringVar(&o.InstallationID, "installation-id", "", "installation ID of the GitHub App")
	flags.StringVar(&o.appKeyFile, "app-key-file", "", "file with the private key of the GitHub App")
	flags.StringSliceVar(&o.Labels, "labels", defaultLabels(), "labels of the jobs that the fleet runs; "+
		"default with Windows: windows,x64")
	flags.IntVar(&o.MaxMachines, "max-machines", 10, "maximum number of machines")
	flags.StringVar(&o.Cluster, "cluster", "", "name of the HypervisorCluster; default: proxmox or libvirt")
	flags.StringVarP(&o.Namespace, "namespace", "n", "ci", "namespace of the template and the pool")
	flags.StringVar(&o.OperatorNamespace, "operator-namespace", config.Default().Namespace, "namespace that the operator runs in")
	flags.StringVar(&o.fromFile, "from", "", "`file` with the pool to take over: values of the chart gha-runner-scale-set or an "+
		"AutoscalingRunnerSet (actions-runner-controller), or what garm-cli pool show --format json prints (GARM)")
	flags.StringVar(&o.dir, "dir", "fleet", "folder to write the files to")
	flags.BoolVar(&o.skipChecks, "skip-checks", false, "skip all checks; for machines that cannot reach the hypervisor or GitHub")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usage(err) })
}

// run asks the questions, checks the answers, and writes the files.
func (o *options) run(cmd *cobra.Command) error {
	if err := o.takeOver(cmd); err != nil {
		return err
	}

	if err := o.readFiles(); err != nil {
		return err
	}

	prompt := &prompter{in: cmd.InOrStdin(), out: cmd.OutOrStdout()}
	if file, ok := prompt.in.(*os.File); ok {
		prompt.isTerminal = term.IsTerminal(int(file.Fd()))
	}

	if file, ok := prompt.out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		prompt.width, _ = screen.Size(file)
	}

	if err := o.checkNoFiles(); err != nil {
		return err
	}

	if !prompt.isTerminal { // the error lists all missing flags, before the first check
		if err := prompt.askAll(append(o.hypervisorQuestions(), o.platformQuestions()...)); err != nil {
			return err
		}
	}

	for _, part := range []struct {
		name    string
		missing func() []question
		check   func(context.Context) (string, error)
	}{
		{"hypervisor", o.hypervisorQuestions, o.verifyHypervisor},
		{partGitHub, o.platformQuestions, o.verifyPlatform},
	} {
		if err := o.askAndCheck(cmd, prompt, part.name, part.missing, part.check); err != nil {
			return err
		}
	}

	if err := o.completeAnswers(); err != nil {
		return err
	}

	if o.isWindows() && !cmd.Flags().Changed("labels") && slices.Equal(o.Labels, defaultLabels()) {
		o.Labels[0] = v1alpha1.OSWindows
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
		"    kubectl apply --server-side -f %s\n    hyperfleet doctor\n\n", o.dir, fleetFile, o.dir, secretsFile, o.dir)

	if o.ScaleSet == "" {
		prompt.print(fmt.Sprintf("Then configure a webhook on GitHub with the secret in %s/%s, or let the operator poll GitHub "+
			"(spec.demand.polling of the pool): see the page GitHub of the documentation.", o.dir, secretsFile))
	}

	if o.GitHubURL != "" {
		prompt.print("The operator calls only servers that its configuration allows: add " + o.GitHubURL + " to runners.platformURLs.")
	}

	return nil
}

// completeAnswers sets the defaults that depend on the hypervisor, validates the answers about it, and normalizes the scope
// and the endpoint.
func (o *options) completeAnswers() error {
	o.normalizeScope()

	if o.isLibvirt() {
		o.Cluster, o.Template = cmp.Or(o.Cluster, v1alpha1.ProviderLibvirt), cmp.Or(o.Template, defaultVolume)

		return o.validateLibvirt()
	}

	o.Cluster = cmp.Or(o.Cluster, v1alpha1.ProviderProxmox)

	if o.isWindows() {
		o.Template = cmp.Or(o.Template, defaultWindowsTemplate)
	}

	o.Template = cmp.Or(o.Template, defaultTemplate)

	if err := checkTokenID(o.TokenID); err != nil {
		return cli.Usagef("--token-id: %w", err)
	}

	var err error

	o.Endpoint, err = normalizeEndpoint(o.Endpoint)

	return err
}

// checkEndpoint returns an error if the answer cannot be the address of a hypervisor.
func checkEndpoint(text string) error {
	if strings.HasPrefix(text, schemeLibvirt) {
		return nil
	}

	_, err := normalizeEndpoint(text)

	return err
}

// checkTokenID returns an error if the answer does not have the form of the IDs that "pveum user token add" prints.
func checkTokenID(text string) error {
	user, token, _ := strings.Cut(text, "!")
	if strings.Contains(user, "@") && token != "" {
		return nil
	}

	return fmt.Errorf("%s is not the ID of a token: give USER@REALM!TOKEN, such as hyperfleet@pve!operator "+
		"(a shell needs quotation marks)", text)
}

// explainNetworkError adds what to do to the error of a server that cannot be reached.
func explainNetworkError(err error) error {
	if _, ok := errors.AsType[*net.OpError](err); !ok {
		return err
	}

	return fmt.Errorf("%w: check the name of the server and the network of this machine, or write the files without checks "+
		"(--skip-checks)", err)
}

// askAndCheck asks the missing questions about the hypervisor or GitHub and checks the answers. With a terminal
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
		err = explainNetworkError(err)

		var unknown *unknownCertificateError
		if errors.As(err, &unknown) && prompt.isTerminal {
			if unknown.fingerprint != o.acceptedFingerprint {
				if err := prompt.confirm(unknown.question()); err != nil {
					return err
				}
			}

			o.Fingerprint, o.acceptedFingerprint = unknown.fingerprint, unknown.fingerprint

			continue
		}

		if err == nil {
			prompt.print(name + ": " + result)

			return nil
		}

		// Flags name the files with the credentials of an App or a libvirt host, so no question can correct them.
		if !prompt.isTerminal || o.isLibvirt() || name == partGitHub && o.AppID != "" {
			return err
		}

		prompt.print(name + ": " + err.Error())

		if name == partGitHub {
			o.clearPlatformAnswers()
		} else {
			o.clearHypervisorAnswers()
		}
	}
}

// runCheck runs a check with checkTimeout. An interrupt cancels the check. While the command waits for an
// answer, an interrupt ends the program.
func runCheck(cmd *cobra.Command, check func(context.Context) (string, error)) (string, error) {
	ctx, stop := cli.WithTimeout(cmd, checkTimeout)
	defer stop()

	return check(ctx)
}

// clearHypervisorAnswers clears the answers about the hypervisor, so that the command asks for them again.
func (o *options) clearHypervisorAnswers() {
	o.Fingerprint, o.asksTemplate = "", true
	o.clearAnswers(&o.Endpoint, &o.TokenID, &o.TokenSecret, &o.Template)
}

// clearPlatformAnswers clears the answers about GitHub, so that the command asks for them again. One question asks for the
// organization or the repository, so the cleared repository becomes the former answer to it.
func (o *options) clearPlatformAnswers() {
	o.Organization, o.Repository = cmp.Or(o.Organization, o.Repository), ""
	o.clearAnswers(&o.Organization, &o.GitHubToken)
}

// clearAnswers clears answers, and keeps them as the former answers, which are used again if the user enters nothing.
func (o *options) clearAnswers(all ...*string) {
	if o.former == nil {
		o.former = map[*string]string{}
	}

	for _, answer := range all {
		o.former[answer], *answer = *answer, ""
	}
}

// normalizeScope accepts a repository, or the URL of an organization or a repository, as the answer about the
// organization. The token is not for the server of another URL.
func (o *options) normalizeScope() {
	_, link, isURL := strings.Cut(o.Organization, "://")
	host, path, _ := strings.Cut(link, "/")

	if isURL && (host == "github.com" || strings.HasPrefix(o.GitHubURL+"/", "https://"+host+"/")) {
		o.Organization = path
	}

	o.Organization = strings.TrimSuffix(strings.Trim(o.Organization, "/"), ".git")
	if strings.Count(o.Organization, "/") == 1 {
		o.Organization, o.Repository = "", o.Organization
	}
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
		{"client-cert-file", o.clientCertFile, &o.ClientCert},
		{"client-key-file", o.clientKeyFile, &o.ClientKey},
		{"ssh-key-file", o.sshKeyFile, &o.SSHKey},
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

// isMemory reports whether a text is a size that the CRD accepts.
func isMemory(text string) bool {
	size, err := resource.ParseQuantity(text)

	return err == nil && size.Cmp(resource.MustParse("64Mi")) >= 0
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
	case o.OS != "" && o.OS != v1alpha1.OSLinux && !o.isWindows():
		return cli.Usagef("--os %s: use %s or %s", o.OS, v1alpha1.OSLinux, v1alpha1.OSWindows)
	case !isMemory(o.Memory):
		return cli.Usagef("--memory %s: give a size of at least 64Mi, such as 8Gi", o.Memory)
	case o.MaxMachines < 1:
		return cli.Usagef("--max-machines %d: give a number of at least 1", o.MaxMachines)
	case o.CPU < 1:
		return cli.Usagef("--cpu %d: give a number of at least 1", o.CPU)
	}

	for _, name := range []struct{ flag, value string }{
		{"namespace", o.Namespace}, {"operator-namespace", o.OperatorNamespace},
		{"cluster", cmp.Or(o.Cluster, v1alpha1.ProviderProxmox)},
	} {
		if len(validation.IsDNS1123Label(name.value)) > 0 {
			return cli.Usagef("--%s %q: give a name of at most 63 lower-case letters, digits and '-'", name.flag, name.value)
		}
	}

	if _, err := hypervisor.NewTLSConfig(&v1alpha1.HypervisorTLS{Fingerprint: o.Fingerprint}, nil, nil); err != nil {
		return cli.Usagef("--fingerprint %s: %w", o.Fingerprint, errors.Unwrap(err))
	}

	if _, err := hypervisor.NewTLSConfig(&v1alpha1.HypervisorTLS{CABundle: o.CABundle}, nil, nil); err != nil {
		return cli.Usagef("--ca-file %s: %w", o.caFile, errors.Unwrap(err))
	}

	return nil
}
