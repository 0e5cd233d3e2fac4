// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package setup

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

// maxSource limits the file of --from.
const maxSource = 4 << 20

// source has the fields of all formats of --from.
type source struct {
	// The values of the chart gha-runner-scale-set, and the spec of an AutoscalingRunnerSet.
	Kind               string         `json:"kind"`
	Metadata           sourceMetadata `json:"metadata"`
	Spec               *arcScaleSet   `json:"spec"`
	arcScaleSet        `json:",inline"`
	GithubConfigSecret any `json:"githubConfigSecret"`

	garmPool `json:",inline"`
}

type sourceMetadata struct {
	Name string `json:"name"`
}

// arcScaleSet is what actions-runner-controller configures of a runner scale set.
type arcScaleSet struct {
	GithubConfigURL    string   `json:"githubConfigUrl"`
	RunnerScaleSetName string   `json:"runnerScaleSetName"`
	ScaleSetLabels     []string `json:"scaleSetLabels"`
	RunnerGroup        string   `json:"runnerGroup"`
	MaxRunners         *int     `json:"maxRunners"`
	MinRunners         int      `json:"minRunners"`
	ContainerMode      *struct {
		Type string `json:"type"`
	} `json:"containerMode"`
}

// garmPool is a pool of GARM, as its API returns it.
type garmPool struct {
	ID             string `json:"id"`
	Flavor         string `json:"flavor"`
	Image          string `json:"image"`
	GARMMaxRunners int    `json:"max_runners"`
	MinIdleRunners int    `json:"min_idle_runners"`
	OSType         string `json:"os_type"`
	OSArch         string `json:"os_arch"`
	Tags           []struct {
		Name string `json:"name"`
	} `json:"tags"`
	RepoName        string `json:"repo_name"`
	OrgName         string `json:"org_name"`
	EnterpriseName  string `json:"enterprise_name"`
	GARMRunnerGroup string `json:"github-runner-group"`
	Endpoint        struct {
		APIBaseURL string `json:"api_base_url"`
	} `json:"endpoint"`
}

// takeOver reads the file of --from and uses its values as the answers to questions. Flags have precedence over
// the file. takeOver prints the settings of the file that it does not use.
func (o *options) takeOver(cmd *cobra.Command) error {
	if o.fromFile == "" {
		return nil
	}

	text, err := readSource(o.fromFile)
	if err != nil {
		return cli.Usagef("--from: %w", err)
	}

	var from source
	if err := yaml.Unmarshal(text, &from); err != nil {
		return cli.Usagef("--from: %s is neither YAML nor JSON of one pool: %w", o.fromFile, err)
	}

	if from.Spec != nil {
		from.arcScaleSet = *from.Spec
	}

	var notes []string

	switch {
	case from.GithubConfigURL != "":
		notes, err = o.takeOverARC(cmd, &from)
	case from.ID != "" && from.Flavor != "":
		notes, err = o.takeOverGARM(cmd, &from.garmPool)
	default:
		err = errors.New("the file has neither githubConfigUrl (actions-runner-controller) nor the id and flavor of a pool of GARM")
	}

	if err != nil {
		return cli.Usagef("--from: %w", err)
	}

	for _, note := range notes {
		cmd.PrintErrln("note:", note)
	}

	return nil
}

func readSource(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // it was only read

	text, err := io.ReadAll(io.LimitReader(file, maxSource+1))
	if err == nil && len(text) > maxSource {
		err = fmt.Errorf("%s is larger than %d bytes", name, maxSource)
	}

	return text, err
}

// takeOverARC takes over a runner scale set of actions-runner-controller.
func (o *options) takeOverARC(cmd *cobra.Command, from *source) ([]string, error) {
	target, err := url.Parse(from.GithubConfigURL)
	if err != nil || target.Host == "" {
		return nil, fmt.Errorf("githubConfigUrl %q is not a URL", from.GithubConfigURL)
	}

	owner, repository, hasRepository := strings.Cut(strings.Trim(target.Path, "/"), "/")
	if owner == "enterprises" || owner == "" || strings.Contains(repository, "/") {
		return nil, fmt.Errorf("githubConfigUrl %s: init knows organizations and repositories: "+
			"see docs/guides/github.md for enterprises", from.GithubConfigURL)
	}

	if hasRepository {
		o.answerScope(cmd, "", owner+"/"+repository)
	} else {
		o.answerScope(cmd, owner, "")
	}

	if host := target.Hostname(); host != "github.com" && !cmd.Flags().Changed("github-url") {
		o.GitHubURL = "https://" + target.Host + "/api/v3"
	}

	o.ScaleSet = cmp.Or(from.RunnerScaleSetName, from.Metadata.Name)
	if o.ScaleSet == "" {
		return nil, errors.New("runnerScaleSetName is missing: set it to the name of the Helm release, which jobs have in runs-on")
	}

	o.answerLabels(cmd, from.ScaleSetLabels)
	o.answerLimits(cmd, from.MaxRunners, from.MinRunners)
	o.RunnerGroup = from.RunnerGroup

	notes := []string{
		"uninstall the scale set of actions-runner-controller before you apply the files, because both would take its jobs",
		"template and resources of the pods are not taken over: jobs run in VMs, set --cpu and --memory",
	}
	if _, isInline := from.GithubConfigSecret.(map[string]any); isInline {
		notes = append(notes, "githubConfigSecret is not taken over: pass --github-token-file, or --app-id and its key")
	}

	if from.ContainerMode != nil && from.ContainerMode.Type != "" {
		notes = append(notes, "containerMode "+from.ContainerMode.Type+" is not needed: install Docker in the template of the machines")
	}

	return notes, nil
}

// takeOverGARM takes over a pool of GARM.
func (o *options) takeOverGARM(cmd *cobra.Command, from *garmPool) ([]string, error) {
	if from.EnterpriseName != "" || from.OrgName == "" && from.RepoName == "" {
		return nil, errors.New("init knows pools of organizations and repositories: see docs/guides/github.md for enterprises")
	}

	o.answerScope(cmd, from.OrgName, from.RepoName)

	if base := from.Endpoint.APIBaseURL; base != "" && base != "https://api.github.com" && !cmd.Flags().Changed("github-url") {
		o.GitHubURL = base
	}

	labels := make([]string, 0, len(from.Tags))
	for _, tag := range from.Tags {
		labels = append(labels, tag.Name)
	}

	o.answerLabels(cmd, labels)

	limit := from.GARMMaxRunners
	o.answerLimits(cmd, &limit, from.MinIdleRunners)
	o.RunnerGroup = from.GARMRunnerGroup

	notes := []string{
		"disable the pool of GARM before you apply the files, because both would take its jobs",
		fmt.Sprintf("image %s and flavor %s are not taken over: set --template, --cpu and --memory", from.Image, from.Flavor),
	}
	if from.OSType == v1alpha1.OSWindows && !cmd.Flags().Changed("os") {
		o.OS = v1alpha1.OSWindows
		notes = append(notes, "the machines have Windows: docs/guides/windows.md says what the template needs")
	}

	if from.OSArch != "" && from.OSArch != "amd64" {
		notes = append(notes, "the machines have the architecture "+from.OSArch+": set bootstrap.config.github.runner.arch")
	}

	return notes, nil
}

func (o *options) answerScope(cmd *cobra.Command, organization, repository string) {
	if flags := cmd.Flags(); !flags.Changed("organization") && !flags.Changed("repository") {
		o.Organization, o.Repository = organization, repository
	}
}

func (o *options) answerLabels(cmd *cobra.Command, labels []string) {
	if !cmd.Flags().Changed("labels") && len(labels) > 0 {
		o.Labels = labels
	}
}

func (o *options) answerLimits(cmd *cobra.Command, limit *int, idle int) {
	if !cmd.Flags().Changed("max-machines") && limit != nil {
		o.MaxMachines = *limit
	}

	o.WarmIdle = idle
}
