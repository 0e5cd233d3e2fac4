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

// Workload is a kind of CI platform with its settings.
// +kubebuilder:validation:XValidation:rule="self.type != 'github-actions' || (has(self.config) && has(self.config.github))",message="workload.type github-actions needs workload.config.github"
// +kubebuilder:validation:XValidation:rule="self.type != 'gitlab-ci' || (has(self.config) && has(self.config.gitlab))",message="workload.type gitlab-ci needs workload.config.gitlab"
// +kubebuilder:validation:XValidation:rule="self.type != 'buildkite' || (has(self.config) && has(self.config.buildkite))",message="workload.type buildkite needs workload.config.buildkite"
// +kubebuilder:validation:XValidation:rule="self.type != 'forgejo-actions' || (has(self.config) && has(self.config.forgejo))",message="workload.type forgejo-actions needs workload.config.forgejo"
// +kubebuilder:validation:XValidation:rule="self.type != 'gitea-actions' || (has(self.config) && has(self.config.gitea))",message="workload.type gitea-actions needs workload.config.gitea"
// +kubebuilder:validation:XValidation:rule="self.type != 'generic' || (has(self.config) && has(self.config.generic))",message="workload.type generic needs workload.config.generic"
type Workload struct {
	// type of the CI platform.
	// +kubebuilder:validation:Enum=github-actions;gitlab-ci;buildkite;forgejo-actions;gitea-actions;generic
	Type string `json:"type"`
	// config of the platform.
	// +optional
	Config *WorkloadConfig `json:"config,omitempty"`
	// webhook holds the secret that the platform signs its webhooks with.
	// +optional
	Webhook *Webhook `json:"webhook,omitempty"`
}

// WorkloadConfig holds the settings of the platforms; the one of workload.type counts.
type WorkloadConfig struct {
	// github settings.
	// +optional
	GitHub *GitHubActionsConfig `json:"github,omitempty"`
	// gitlab settings.
	// +optional
	GitLab *GitLabCIConfig `json:"gitlab,omitempty"`
	// buildkite settings.
	// +optional
	Buildkite *BuildkiteConfig `json:"buildkite,omitempty"`
	// forgejo settings.
	// +optional
	Forgejo *GiteaConfig `json:"forgejo,omitempty"`
	// gitea settings.
	// +optional
	Gitea *GiteaConfig `json:"gitea,omitempty"`
	// generic settings.
	// +optional
	Generic *GenericConfig `json:"generic,omitempty"`
}

// Webhook authenticates a platform's webhooks.
type Webhook struct {
	// secret shared with the platform.
	Secret SecretValueSource `json:"secret"`
}

// GitHubActionsConfig configures runners of GitHub Actions.
type GitHubActionsConfig struct {
	// organization that the runners belong to. Default: the template's.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9_.-]+$')",message="organization must be the name of an organisation, not a URL"
	Organization string `json:"organization,omitempty"`
	// repository as owner/name that the runners belong to; it takes precedence over
	// organization. Default: the template's.
	// +optional
	// +kubebuilder:validation:MaxLength=201
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+$')",message="repository must be written owner/name, e.g. example/app"
	Repository string `json:"repository,omitempty"`
	// labels of the runners. A runner takes the jobs whose labels it has all of.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.all(l, !l.contains(','))",message="labels must not hold a comma: write each label as an item of its own"
	Labels []string `json:"labels,omitempty"`
	// runnerGroup that the runners join; organisations and enterprises only.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	RunnerGroup string `json:"runnerGroup,omitempty"`
	// runnerName of the one runner of a MachineClaim. Default: made from the claim's
	// name and uid.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	RunnerName string `json:"runnerName,omitempty"`
	// scaleSet makes the runners those of a GitHub runner scale set of this name: jobs
	// with runs-on: NAME come over a long poll and no webhook is needed. The set is made
	// if there is none.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9_.-]+$')",message="scaleSet must be a name of letters, digits, '_', '.' and '-'"
	ScaleSet string `json:"scaleSet,omitempty"`
}

// GiteaConfig configures runners of Forgejo Actions or Gitea Actions. Without repository and
// organization they are the whole instance's.
// +kubebuilder:validation:XValidation:rule="!(has(self.repository) && has(self.organization))",message="choose at most one of repository and organization"
type GiteaConfig struct {
	// url of the instance, with its path if it has one.
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getHostname() != '' && (url(self).getScheme() == 'https' || url(self).getScheme() == 'http' && url(self).getHostname() in ['localhost', '127.0.0.1', '::1'])",message="url must be an https URL (http on loopback alone) such as https://git.example.com"
	URL string `json:"url"`
	// repository as owner/name that the runners belong to.
	// +optional
	// +kubebuilder:validation:MaxLength=201
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+$')",message="repository must be owner/name"
	Repository string `json:"repository,omitempty"`
	// organization that the runners belong to.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_.-]+$')",message="organization must be the name of an organisation, not a URL"
	Organization string `json:"organization,omitempty"`
	// labels of the runners. A job runs on a runner that has all labels of its runs-on.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=255
	// +kubebuilder:validation:items:Pattern=`^[^\s,:]+$`
	Labels []string `json:"labels"`
}

// GitLabCIConfig configures runners of GitLab CI.
// +kubebuilder:validation:XValidation:rule="!(has(self.projectId) && has(self.groupId))",message="choose at most one of gitlab.projectId and gitlab.groupId"
type GitLabCIConfig struct {
	// url of the GitLab instance.
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getHostname() != '' && (url(self).getScheme() == 'https' || url(self).getScheme() == 'http' && url(self).getHostname() in ['localhost', '127.0.0.1', '::1'])",message="gitlab.url must be an https URL (http on loopback alone) such as https://gitlab.example.com"
	URL string `json:"url"`
	// projectId that the runners belong to.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	ProjectID string `json:"projectId,omitempty"`
	// groupId that the runners belong to.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	GroupID string `json:"groupId,omitempty"`
	// tags of the runners.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=255
	Tags []string `json:"tags,omitempty"`
	// description of the runners.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Description string `json:"description,omitempty"`
	// runUntagged lets the runners take jobs without tags.
	// +optional
	RunUntagged bool `json:"runUntagged,omitempty"`
}

// BuildkiteConfig configures agents of Buildkite.
type BuildkiteConfig struct {
	// organization slug.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Organization string `json:"organization"`
	// queue that the agents serve.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Queue string `json:"queue,omitempty"`
	// tags of the agents, as key=value.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=255
	Tags []string `json:"tags,omitempty"`
	// metadata of the stack.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Metadata map[string]string `json:"metadata,omitempty"`
}

// GenericConfig is for whatever has no kind of its own: a signed webhook says that there
// is a job, and a command does it.
type GenericConfig struct {
	// source of the jobs, as their webhooks name it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9][A-Za-z0-9_./-]*$')",message="generic.source must be a name of letters, digits, '_', '.', '/' and '-'"
	Source string `json:"source"`
	// labels of the machines. They take the jobs whose labels they have all of.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	Labels []string `json:"labels,omitempty"`
	// command that does one job, with its arguments. What the job is stands in the
	// variables HYPERFLEET_JOB_*.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=4096
	Command []string `json:"command"`
	// workDir of the command.
	// +optional
	// +kubebuilder:default=/tmp/runner-work
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/')",message="generic.workDir must be an absolute path"
	WorkDir string `json:"workDir,omitempty"`
}
