// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Workload types.
const (
	WorkloadGitHubActions  = "github-actions"
	WorkloadGitLabCI       = "gitlab-ci"
	WorkloadBuildkite      = "buildkite"
	WorkloadForgejoActions = "forgejo-actions"
	WorkloadGiteaActions   = "gitea-actions"
	WorkloadGeneric        = "generic"
)

// Workload defines the CI platform and its settings.
// +kubebuilder:validation:XValidation:rule="self.type != 'github-actions' || (has(self.config) && has(self.config.github))",message="type github-actions needs config.github"
// +kubebuilder:validation:XValidation:rule="self.type != 'gitlab-ci' || (has(self.config) && has(self.config.gitlab))",message="type gitlab-ci needs config.gitlab"
// +kubebuilder:validation:XValidation:rule="self.type != 'buildkite' || (has(self.config) && has(self.config.buildkite))",message="type buildkite needs config.buildkite"
// +kubebuilder:validation:XValidation:rule="self.type != 'forgejo-actions' || (has(self.config) && has(self.config.forgejo))",message="type forgejo-actions needs config.forgejo"
// +kubebuilder:validation:XValidation:rule="self.type != 'gitea-actions' || (has(self.config) && has(self.config.gitea))",message="type gitea-actions needs config.gitea"
// +kubebuilder:validation:XValidation:rule="self.type != 'generic' || (has(self.config) && has(self.config.generic))",message="type generic needs config.generic"
type Workload struct {
	// type is the CI platform.
	// +kubebuilder:validation:Enum=github-actions;gitlab-ci;buildkite;forgejo-actions;gitea-actions;generic
	Type string `json:"type"`
	// config holds the settings of the platform.
	// +optional
	Config *WorkloadConfig `json:"config,omitempty"`
	// webhook holds the secret with which the platform signs its webhooks.
	// +optional
	Webhook *Webhook `json:"webhook,omitempty"`
}

// WorkloadConfig holds the settings of the platforms. Only the settings of workload.type are used.
type WorkloadConfig struct {
	// github holds the settings of GitHub Actions.
	// +optional
	GitHub *GitHubActionsConfig `json:"github,omitempty"`
	// gitlab holds the settings of GitLab CI.
	// +optional
	GitLab *GitLabCIConfig `json:"gitlab,omitempty"`
	// buildkite holds the settings of Buildkite.
	// +optional
	Buildkite *BuildkiteConfig `json:"buildkite,omitempty"`
	// forgejo holds the settings of Forgejo Actions.
	// +optional
	Forgejo *GiteaConfig `json:"forgejo,omitempty"`
	// gitea holds the settings of Gitea Actions.
	// +optional
	Gitea *GiteaConfig `json:"gitea,omitempty"`
	// generic holds the settings of the generic platform.
	// +optional
	Generic *GenericConfig `json:"generic,omitempty"`
}

// Webhook authenticates a platform's webhooks.
type Webhook struct {
	// secret is the secret that is shared with the platform.
	Secret SecretValueSource `json:"secret"`
}

// GitHubActionsConfig holds the settings of runners for GitHub Actions.
type GitHubActionsConfig struct {
	// organization is the organization of the runners. Default: the organization in the template.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9_.-]+$')",message="organization must be the name of an organization, not a URL"
	Organization string `json:"organization,omitempty"`
	// repository is the repository of the runners, as owner/name. It takes precedence over organization.
	// Default: the repository in the template.
	// +optional
	// +kubebuilder:validation:MaxLength=201
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+$')",message="repository must be written owner/name, e.g. example/app"
	Repository string `json:"repository,omitempty"`
	// labels are the labels of the runners, in addition to self-hosted, hyperfleet and ephemeral, which
	// every runner has. A runner takes jobs of which it has all labels, whatever their case. A label may
	// contain spaces: "linux x64" is one label, which a job must request in the same way. Runners of a
	// scaleSet take its jobs, whatever their labels are.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.all(l, !l.contains(','))",message="labels must not contain a comma: write each label as a separate item"
	Labels []string `json:"labels,omitempty"`
	// runnerGroup is the runner group that the runners join. It is only used with organizations and
	// enterprises.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	RunnerGroup string `json:"runnerGroup,omitempty"`
	// runnerName is the name of the runner of a MachineClaim. Default: a name made of the claim's name
	// and UID.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	RunnerName string `json:"runnerName,omitempty"`
	// scaleSet is the name of a GitHub runner scale set for the runners. The operator receives jobs with
	// runs-on: NAME through a long poll, so that no webhook is needed. The operator creates the scale set
	// if it does not exist.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9_.-]+$')",message="scaleSet must be a name of letters, digits, '_', '.' and '-'"
	ScaleSet string `json:"scaleSet,omitempty"`
}

// GiteaConfig holds the settings of runners for Forgejo Actions or Gitea Actions. Without repository and
// organization, the runners are runners of the whole instance.
// +kubebuilder:validation:XValidation:rule="!(has(self.repository) && has(self.organization))",message="choose at most one of repository and organization"
type GiteaConfig struct {
	// url is the URL of the instance, including its path if it has one.
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getHostname() != '' && (url(self).getScheme() == 'https' || url(self).getScheme() == 'http' && url(self).getHostname() in ['localhost', '127.0.0.1', '::1'])",message="url must be an https URL (http only on loopback) such as https://git.example.com"
	URL string `json:"url"`
	// repository is the repository of the runners, as owner/name.
	// +optional
	// +kubebuilder:validation:MaxLength=201
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+$')",message="repository must be owner/name, e.g. example/app"
	Repository string `json:"repository,omitempty"`
	// organization is the organization of the runners.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_.-]+$')",message="organization must be the name of an organization, not a URL"
	Organization string `json:"organization,omitempty"`
	// labels are the labels of the runners, without :host or an image. A runner takes jobs of which it
	// has all labels, in the same spelling.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=255
	// +kubebuilder:validation:items:XValidation:rule=`self.matches(r'^[^\s,:]+$')`,message="write a label without spaces, commas and colons, such as linux: leave out :host or an image"
	Labels []string `json:"labels"`
}

// GitLabCIConfig holds the settings of runners for GitLab CI.
// +kubebuilder:validation:XValidation:rule="!(has(self.projectId) && has(self.groupId))",message="choose at most one of gitlab.projectId and gitlab.groupId"
type GitLabCIConfig struct {
	// url is the URL of the GitLab instance.
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getHostname() != '' && (url(self).getScheme() == 'https' || url(self).getScheme() == 'http' && url(self).getHostname() in ['localhost', '127.0.0.1', '::1'])",message="gitlab.url must be an https URL (http only on loopback) such as https://gitlab.example.com"
	URL string `json:"url"`
	// projectId is the ID of the project of the runners.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	ProjectID string `json:"projectId,omitempty"`
	// groupId is the ID of the group of the runners.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	GroupID string `json:"groupId,omitempty"`
	// tags are the tags of the runners. A runner takes jobs of which it has all tags, in the same
	// spelling. A tag may contain spaces. Without tags, runners only take jobs without tags, and need
	// runUntagged for them.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=255
	// +kubebuilder:validation:items:XValidation:rule="!self.contains(',')",message="a tag must not contain a comma: write each tag as a separate item"
	Tags []string `json:"tags,omitempty"`
	// description is the description of the runners.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Description string `json:"description,omitempty"`
	// runUntagged allows the runners to run jobs without tags.
	// +optional
	RunUntagged bool `json:"runUntagged,omitempty"`
}

// BuildkiteConfig holds the settings of agents for Buildkite.
type BuildkiteConfig struct {
	// organization is the slug of the organization.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Organization string `json:"organization"`
	// queue is the queue of the agents. Default: default.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Queue string `json:"queue,omitempty"`
	// tags are the tags of the agents, as key=value. A tag without a value has the value true. An agent
	// takes jobs of its queue if it has a tag for each of the job's agent query rules. Without tags, it
	// only takes jobs that request nothing but the queue.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=255
	// +kubebuilder:validation:items:XValidation:rule=`self.matches(r'^\s*[^=,\s][^,\n]*\s*$')`,message="write a tag as key=value, without commas, such as os=linux"
	// +kubebuilder:validation:items:XValidation:rule=`!self.matches(r'^\s*queue(=|\s*$)')`,message="a tag must not name the queue: set buildkite.queue instead"
	Tags []string `json:"tags,omitempty"`
	// metadata is shown by Buildkite for the stack as which the operator registers with the queue.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Metadata map[string]string `json:"metadata,omitempty"`
}

// GenericConfig holds the settings for a CI system that has no workload type of its own. A signed
// webhook announces a job, and a command runs the job.
type GenericConfig struct {
	// source is the name of the job source in the webhooks.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9][A-Za-z0-9_./-]*$')",message="generic.source must be a name of letters, digits, '_', '.', '/' and '-'"
	Source string `json:"source"`
	// labels are the labels of the machines. A machine takes jobs of its source of which it has all
	// labels, whatever their case. A label may contain spaces. Without labels, a machine only takes jobs
	// without labels.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	Labels []string `json:"labels,omitempty"`
	// command is the command with arguments that runs one job. Environment variables HYPERFLEET_JOB_*
	// describe the job.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=4096
	Command []string `json:"command"`
	// workDir is the working directory of the command.
	// +optional
	// +kubebuilder:default=/tmp/runner-work
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/')",message="generic.workDir must be an absolute path"
	WorkDir string `json:"workDir,omitempty"`
}
