// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Bootstrap methods.
const (
	BootstrapRunnerToken     = "runner-token"
	BootstrapCallback        = "callback"
	BootstrapExternalSecrets = "external-secrets"
)

// Ways to deliver the bootstrap service to a machine.
const (
	DeliveryImage    = "image"
	DeliveryDownload = "download"
	DeliveryISO      = "iso"
)

// Operating systems of machines.
const (
	OSLinux   = "linux"
	OSWindows = "windows"
)

// Bootstrap defines how a machine gets its credential and its runner.
// +kubebuilder:validation:XValidation:rule="!has(self.method) || self.method != 'external-secrets' || (has(self.config) && has(self.config.externalSecrets))",message="bootstrap.method external-secrets needs bootstrap.config.externalSecrets"
// +kubebuilder:validation:XValidation:rule="!has(self.method) || self.method != 'external-secrets' || !has(self.config) || !has(self.config.buildkite)",message="bootstrap.method external-secrets cannot be used with Buildkite, because each Buildkite job has its own credential: use callback"
// +kubebuilder:validation:XValidation:rule="!has(self.os) || self.os != 'linux' || !has(self.config) || !has(self.config.github) || !has(self.config.github.runner) || !has(self.config.github.runner.os) || self.config.github.runner.os != 'win'",message="bootstrap.os linux contradicts config.github.runner.os win: correct one of them"
// +kubebuilder:validation:XValidation:rule="!has(self.os) || self.os != 'windows' || !has(self.delivery) || self.delivery == 'image'",message="bootstrap.delivery must be image with os windows, because the service is not delivered to Windows: install bootstrap-service.exe in the template"
type Bootstrap struct {
	// os is the operating system of the machine: linux or windows. Default: what the hypervisor records about
	// the template (ostype on Proxmox VE, libosinfo on libvirt, the preference of the DataSource or
	// PersistentVolumeClaim on KubeVirt), and otherwise linux. If the two differ, the template is not Ready.
	// +optional
	// +kubebuilder:validation:Enum=linux;windows
	OS string `json:"os,omitempty"`
	// method is the way in which the credential reaches the machine: runner-token (in the cloud-init
	// data), callback (the machine fetches it once from the operator), or external-secrets (the machine
	// reads it from a secrets manager).
	// +kubebuilder:validation:Enum=runner-token;callback;external-secrets
	// +optional
	// +kubebuilder:default=runner-token
	Method string `json:"method,omitempty"`
	// delivery is the way in which the bootstrap service reaches the machine. With image, the template's image
	// contains the service. With download, the machine downloads the service from the operator and verifies its
	// checksum. With iso, the service is on the cloud-init ISO.
	// +optional
	// +kubebuilder:default=image
	// +kubebuilder:validation:Enum=image;download;iso
	Delivery string `json:"delivery,omitempty"`
	// config holds the settings of the method and of the CI platform.
	// +optional
	Config *BootstrapConfig `json:"config,omitempty"`
}

// BootstrapConfig holds the settings of the bootstrap methods and of the CI platforms.
type BootstrapConfig struct {
	// github holds credentials and settings of GitHub Actions.
	// +optional
	GitHub *GitHubBootstrap `json:"github,omitempty"`
	// gitlab holds credentials and settings of GitLab CI.
	// +optional
	GitLab *GitLabBootstrap `json:"gitlab,omitempty"`
	// buildkite holds credentials and settings of Buildkite.
	// +optional
	Buildkite *BuildkiteBootstrap `json:"buildkite,omitempty"`
	// forgejo holds credentials and settings of Forgejo Actions.
	// +optional
	Forgejo *GiteaBootstrap `json:"forgejo,omitempty"`
	// gitea holds credentials and settings of Gitea Actions.
	// +optional
	Gitea *GiteaBootstrap `json:"gitea,omitempty"`
	// externalSecrets defines where machines read their credential with method external-secrets.
	// +optional
	ExternalSecrets *ExternalSecrets `json:"externalSecrets,omitempty"`
	// httpClient holds the settings for calls to the CI platform.
	// +optional
	HTTPClient *HTTPClient `json:"httpClient,omitempty"`
}

// ExternalSecrets is a secret in a secrets manager that machines read with their attested identity. A
// machine keeps the secret in memory only. Use a secret that is worth no more than one runner, because
// everyone who controls the machine can read it.
// +kubebuilder:validation:XValidation:rule="self.auth != 'jwt' || has(self.role)",message="externalSecrets.auth jwt needs externalSecrets.role"
type ExternalSecrets struct {
	// manager is the secrets manager: vault, for HashiCorp Vault and OpenBao.
	// +optional
	// +kubebuilder:default=vault
	// +kubebuilder:validation:Enum=vault
	Manager string `json:"manager,omitempty"`
	// address is the base URL at which machines reach the secrets manager.
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getScheme() in ['http', 'https'] && url(self).getHostname() != ''",message="externalSecrets.address must be a URL such as https://vault.example.com:8200"
	Address string `json:"address"`
	// caBundle verifies the server certificate of the secrets manager, in PEM. Default: the certificate
	// authorities of the machine.
	// +optional
	// +kubebuilder:validation:MaxLength=65536
	CABundle string `json:"caBundle,omitempty"`
	// namespace is the namespace in the secrets manager (Vault Enterprise, OpenBao). Default: none.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Namespace string `json:"namespace,omitempty"`
	// auth is the method with which machines log in: jwt (with a JWT-SVID), or cert (with the X.509-SVID
	// as TLS client certificate).
	// +optional
	// +kubebuilder:default=jwt
	// +kubebuilder:validation:Enum=jwt;cert
	Auth string `json:"auth,omitempty"`
	// authMount is the path at which the auth method is mounted. Default: the name of the method.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	AuthMount string `json:"authMount,omitempty"`
	// role is the role to log in with. It is required with jwt.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Role string `json:"role,omitempty"`
	// audience is the audience of the JWT-SVID. Default: vault.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Audience string `json:"audience,omitempty"`
	// path is the path of the secret in the manager's HTTP API, e.g. secret/data/runners/{pool}.
	// Placeholders: {namespace}, {pool}, {claim}, {uid}.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9{][A-Za-z0-9{}_./-]*$') && !self.contains('..')",message="externalSecrets.path must be a path such as secret/data/runners/{pool}"
	Path string `json:"path"`
	// keys maps jit_config, runner_token and registration_url to their names in the secret. Default: the
	// same names.
	// +optional
	// +kubebuilder:validation:MaxProperties=3
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['jit_config', 'runner_token', 'registration_url'])",message="the keys of externalSecrets.keys must be jit_config, runner_token or registration_url"
	Keys map[string]string `json:"keys,omitempty"`
}

// HTTPClient holds the settings for calls to a CI platform.
type HTTPClient struct {
	// timeoutSeconds is the timeout of one call, in seconds.
	// +optional
	// +kubebuilder:default=30
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=300
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
}

// Kinds of credentials with which a runner registers.
const (
	RegistrationJIT   = "jit"
	RegistrationToken = "token"
)

// GitHubBootstrap holds the settings to register runners with GitHub.
// +kubebuilder:validation:XValidation:rule="has(self.app) != has(self.credentials)",message="choose exactly one of app (a GitHub App) and credentials (a personal access token)"
// +kubebuilder:validation:XValidation:rule="!has(self.repository) || has(self.owner)",message="repository needs owner"
type GitHubBootstrap struct {
	// app authenticates as an installation of a GitHub App. It is recommended.
	// +optional
	App *GitHubApp `json:"app,omitempty"`
	// credentials is a personal access token.
	// +optional
	Credentials *SecretValueSource `json:"credentials,omitempty"`
	// owner is the owner of the repository: a user or an organization.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9_.-]+$')",message="owner must be the name of a user or an organization, not a URL"
	Owner string `json:"owner,omitempty"`
	// repository registers the runners for this repository. It takes precedence over organization.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9_.-]+$')",message="repository must be a name without its owner: set owner in the field owner"
	Repository string `json:"repository,omitempty"`
	// organization registers the runners for this organization.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9_.-]+$')",message="organization must be the name of an organization, not a URL"
	Organization string `json:"organization,omitempty"`
	// enterprise is the slug of an enterprise. It registers the runners for all organizations of the
	// enterprise. It needs a classic personal access token with the scope manage_runners:enterprise,
	// because GitHub Apps cannot be used.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9_.-]+$')",message="enterprise must be the slug of an enterprise, not a URL"
	Enterprise string `json:"enterprise,omitempty"`
	// apiUrl is the base URL of the REST API. Default: https://api.github.com. For GitHub Enterprise
	// Server: https://HOST/api/v3.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getHostname() != '' && (url(self).getScheme() == 'https' || url(self).getScheme() == 'http' && url(self).getHostname() in ['localhost', '127.0.0.1', '::1'])",message="apiUrl must be an https URL (http only on loopback) such as https://api.github.com"
	APIURL string `json:"apiUrl,omitempty"`
	// registrationUrls are the URLs of the API calls that create registration tokens. Placeholders:
	// {owner}, {repo}, {org}.
	// +optional
	RegistrationURLs *GitHubURLs `json:"registrationUrls,omitempty"`
	// runnerUrls are the URLs to which runners register. Placeholders: {owner}, {repo}, {org}.
	// +optional
	RunnerURLs *GitHubURLs `json:"runnerUrls,omitempty"`
	// registration is the credential that the machine gets: jit, a just-in-time configuration that
	// registers one runner once; or token, a registration token, with which everyone who reads it can
	// register runners for one hour.
	// +optional
	// +kubebuilder:default=jit
	// +kubebuilder:validation:Enum=jit;token
	Registration string `json:"registration,omitempty"`
	// runner defines the runner program in the machine.
	// +optional
	Runner *GitHubRunner `json:"runner,omitempty"`
}

// GitLabBootstrap holds the settings to register runners with GitLab.
type GitLabBootstrap struct {
	// credentials is an access token of an owner of the project or the group. It needs the scopes
	// create_runner and read_api, and manage_runner to delete runners.
	Credentials SecretValueSource `json:"credentials"`
	// program is the path of gitlab-runner in the machine.
	// +optional
	// +kubebuilder:default=/usr/bin/gitlab-runner
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/')",message="gitlab.program must be an absolute path"
	Program string `json:"program,omitempty"`
	// workDir is the working directory of jobs in the machine.
	// +optional
	// +kubebuilder:default=/tmp/runner-work
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/')",message="gitlab.workDir must be an absolute path"
	WorkDir string `json:"workDir,omitempty"`
}

// BuildkiteBootstrap holds the settings to acquire jobs of Buildkite.
type BuildkiteBootstrap struct {
	// credentials is the agent token of the Buildkite cluster. The operator never sends it to a machine.
	Credentials SecretValueSource `json:"credentials"`
	// endpoint is the URL of Buildkite's agent API.
	// +optional
	// +kubebuilder:default="https://agent.buildkite.com/v3"
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getHostname() != '' && (url(self).getScheme() == 'https' || url(self).getScheme() == 'http' && url(self).getHostname() in ['localhost', '127.0.0.1', '::1'])",message="buildkite.endpoint must be an https URL (http only on loopback) such as https://agent.buildkite.com/v3"
	Endpoint string `json:"endpoint,omitempty"`
	// program is the path of buildkite-agent in the machine.
	// +optional
	// +kubebuilder:default=/usr/bin/buildkite-agent
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/')",message="buildkite.program must be an absolute path"
	Program string `json:"program,omitempty"`
	// workDir is the working directory of builds in the machine.
	// +optional
	// +kubebuilder:default=/tmp/runner-work
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/')",message="buildkite.workDir must be an absolute path"
	WorkDir string `json:"workDir,omitempty"`
}

// GiteaBootstrap holds the settings to register runners with Forgejo or Gitea.
type GiteaBootstrap struct {
	// credentials is an access token of an administrator of the repository, an owner of the organization,
	// or an administrator of the instance. The operator never sends it to a machine.
	Credentials SecretValueSource `json:"credentials"`
	// program is the path of the runner program in the machine. Default: /usr/bin/forgejo-runner for
	// Forgejo, and /usr/bin/act_runner for Gitea.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/')",message="program must be an absolute path"
	Program string `json:"program,omitempty"`
	// workDir is the working directory of jobs in the machine.
	// +optional
	// +kubebuilder:default=/tmp/runner-work
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/')",message="workDir must be an absolute path"
	WorkDir string `json:"workDir,omitempty"`
}

// GitHubApp identifies an installation of a GitHub App.
type GitHubApp struct {
	// appId is the numeric ID or the client ID of the App.
	AppID SecretValueSource `json:"appId"`
	// privateKey is the App's RSA private key in PEM.
	PrivateKey SecretValueSource `json:"privateKey"`
	// installationId is the numeric ID of the installation.
	InstallationID SecretValueSource `json:"installationId"`
}

// GitHubURLs are URLs with placeholders, one for each scope.
type GitHubURLs struct {
	// repository is the URL for runners of a repository.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^https?://[^/]')",message="repository must be a URL such as https://github.com/{owner}/{repo}"
	Repository string `json:"repository,omitempty"`
	// enterprise is the URL for runners of an enterprise, with the placeholder {enterprise}.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^https?://[^/]')",message="enterprise must be a URL such as https://github.com/enterprises/{enterprise}"
	Enterprise string `json:"enterprise,omitempty"`
	// organization is the URL for runners of an organization.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^https?://[^/]')",message="organization must be a URL such as https://github.com/{org}"
	Organization string `json:"organization,omitempty"`
}

// Values of the version of a runner that are no release.
const (
	// RunnerVersionFromImage means the release that the image contains.
	RunnerVersionFromImage = "from-image"
	// RunnerVersionLatest means the newest release according to the CI platform.
	RunnerVersionLatest = "latest"
)

// GitHubRunner defines the runner program in the machine.
// +kubebuilder:validation:XValidation:rule="!has(self.version) || self.version != 'latest' || !has(self.downloadSha256)",message="downloadSha256 is not allowed with version latest, because GitHub names the checksum of each release: leave it out"
// +kubebuilder:validation:XValidation:rule="!has(self.version) || self.version != 'latest' || !has(self.downloadUrl) || self.downloadUrl.contains('{version}')",message="downloadUrl must contain {version} with version latest, because its releases differ: add it, or leave out downloadUrl"
// +kubebuilder:validation:XValidation:rule="!has(self.version) || self.version in ['latest', 'from-image'] || has(self.downloadSha256)",message="a version needs downloadUrl and downloadSha256, because a download is run only if its checksum is known: set both, or version latest"
// +kubebuilder:validation:XValidation:rule="(has(self.version) && self.version == 'latest') || has(self.downloadUrl) == has(self.downloadSha256)",message="downloadUrl and downloadSha256 belong together, because a download is run only if its checksum is known: set both or neither"
type GitHubRunner struct {
	// version is the release of the runner: from-image (the one that the image contains), latest (the newest
	// release according to GitHub), or a release such as 2.330.0. If the image contains another release, each
	// machine downloads the runner, which delays its start. Default: from-image.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^(from-image|latest|[0-9]{1,4}[.][0-9]{1,4}[.][0-9]{1,4})$')",message="version must be from-image, latest or a release such as 2.330.0"
	Version string `json:"version,omitempty"`
	// downloadUrl is the URL from which the machine downloads the runner if its image does not contain
	// the runner, or not its version. Placeholders: {os}, {arch}, {version}. Default: with version latest the
	// URL that GitHub names, otherwise nothing is downloaded.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^https?://[^/]')",message="downloadUrl must be a URL such as https://example.com/actions-runner-{os}-{arch}.tar.gz"
	DownloadURL string `json:"downloadUrl,omitempty"`
	// downloadSha256 is the SHA-256 checksum of the download in hexadecimal. It is required with
	// downloadUrl.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9a-fA-F]{64}$')",message="downloadSha256 must be a SHA-256: 64 hexadecimal digits"
	DownloadSHA256 string `json:"downloadSha256,omitempty"`
	// installPath is the directory of the runner in the machine.
	// +optional
	// +kubebuilder:default=/opt/actions-runner
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^(/|[A-Za-z]:)')",message="installPath must be an absolute path such as /opt/actions-runner"
	InstallPath string `json:"installPath,omitempty"`
	// workDir is the working directory of jobs in the machine.
	// +optional
	// +kubebuilder:default=/tmp/runner-work
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^(/|[A-Za-z]:)')",message="workDir must be an absolute path such as /tmp/runner-work"
	WorkDir string `json:"workDir,omitempty"`
	// configScript is the name of the script in installPath that registers the runner.
	// +optional
	// +kubebuilder:default=config.sh
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_.-]+$')",message="configScript must be the name of a file in installPath, without a path"
	ConfigScript string `json:"configScript,omitempty"`
	// runScript is the name of the script in installPath that runs the runner.
	// +optional
	// +kubebuilder:default=run.sh
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_.-]+$')",message="runScript must be the name of a file in installPath, without a path"
	RunScript string `json:"runScript,omitempty"`
	// os is the operating system of the machine, in GitHub's names: linux or win. With win, the template must
	// contain the bootstrap service (bootstrap.delivery image), and the scripts end with .cmd.
	// +optional
	// +kubebuilder:default=linux
	// +kubebuilder:validation:Enum=linux;osx;win
	// +kubebuilder:validation:XValidation:rule="self in ['linux', 'win']",message="os must be linux or win, because the bootstrap service does not run on macOS guests"
	OS string `json:"os,omitempty"`
	// arch is the architecture of the machine, in GitHub's names.
	// +optional
	// +kubebuilder:default=x64
	// +kubebuilder:validation:Enum=x64;arm64;arm
	Arch string `json:"arch,omitempty"`
}
