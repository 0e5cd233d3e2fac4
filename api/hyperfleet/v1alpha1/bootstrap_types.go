// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Bootstrap methods.
const (
	BootstrapRunnerToken     = "runner-token"
	BootstrapCallback        = "callback"
	BootstrapExternalSecrets = "external-secrets"
)

// Ways the bootstrap service reaches a machine.
const (
	DeliveryImage    = "image"
	DeliveryDownload = "download"
	DeliveryISO      = "iso"
)

// Bootstrap says how a machine gets its credential and its runner.
// +kubebuilder:validation:XValidation:rule="!has(self.method) || self.method != 'external-secrets' || (has(self.config) && has(self.config.externalSecrets))",message="bootstrap.method external-secrets needs bootstrap.config.externalSecrets"
// +kubebuilder:validation:XValidation:rule="!has(self.method) || self.method != 'external-secrets' || !has(self.config) || !has(self.config.buildkite)",message="bootstrap.method external-secrets is not for Buildkite, which gives each job a credential of its own: use callback"
type Bootstrap struct {
	// method by which the credential reaches the machine.
	// +kubebuilder:validation:Enum=runner-token;callback;external-secrets
	// +optional
	// +kubebuilder:default=runner-token
	Method string `json:"method,omitempty"`
	// delivery of the bootstrap service: image (it is in the template), download (a
	// checksummed download from the operator), or iso (on the cloud-init ISO).
	// +optional
	// +kubebuilder:default=image
	// +kubebuilder:validation:Enum=image;download;iso
	Delivery string `json:"delivery,omitempty"`
	// config of the method.
	// +optional
	Config *BootstrapConfig `json:"config,omitempty"`
}

// BootstrapConfig configures the bootstrap methods.
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
	// externalSecrets is where machines get their credential with method external-secrets.
	// +optional
	ExternalSecrets *ExternalSecrets `json:"externalSecrets,omitempty"`
	// httpClient settings for calls to the CI platform.
	// +optional
	HTTPClient *HTTPClient `json:"httpClient,omitempty"`
}

// ExternalSecrets is a secret in a secrets manager that machines read with the identity that
// they have attested. What they read there stays in the machine's memory; it should be worth
// no more than one runner: whoever has the machine has it.
// +kubebuilder:validation:XValidation:rule="self.auth != 'jwt' || has(self.role)",message="externalSecrets.auth jwt needs externalSecrets.role"
type ExternalSecrets struct {
	// manager is vault, which is OpenBao too.
	// +optional
	// +kubebuilder:default=vault
	// +kubebuilder:validation:Enum=vault
	Manager string `json:"manager,omitempty"`
	// address is the manager's base URL as machines see it.
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getScheme() in ['http', 'https'] && url(self).getHostname() != ''",message="externalSecrets.address must be a URL such as https://vault.example.com:8200"
	Address string `json:"address"`
	// caBundle in PEM verifies the manager. Default: the authorities of the machine.
	// +optional
	// +kubebuilder:validation:MaxLength=65536
	CABundle string `json:"caBundle,omitempty"`
	// namespace of the manager (Vault Enterprise, OpenBao). Default: none.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Namespace string `json:"namespace,omitempty"`
	// auth is the method that machines log in with: jwt, a JWT-SVID, or cert, the X.509-SVID
	// as the certificate of the TLS client.
	// +optional
	// +kubebuilder:default=jwt
	// +kubebuilder:validation:Enum=jwt;cert
	Auth string `json:"auth,omitempty"`
	// authMount is where the method is mounted. Default: its name.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	AuthMount string `json:"authMount,omitempty"`
	// role to log in with.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Role string `json:"role,omitempty"`
	// audience of the JWT-SVID. Default: vault.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Audience string `json:"audience,omitempty"`
	// path of the secret as the manager's HTTP API has it, e.g. secret/data/runners/{pool}.
	// Placeholders: {namespace}, {pool}, {claim}, {uid}.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9{][A-Za-z0-9{}_./-]*$') && !self.contains('..')",message="externalSecrets.path must be a path such as secret/data/runners/{pool}"
	Path string `json:"path"`
	// keys of the secret: jit_config, runner_token and registration_url, each by the name
	// that it has in the secret. Default: these names.
	// +optional
	// +kubebuilder:validation:MaxProperties=3
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['jit_config', 'runner_token', 'registration_url'])",message="externalSecrets.keys can name jit_config, runner_token and registration_url"
	Keys map[string]string `json:"keys,omitempty"`
}

// HTTPClient configures calls to a CI platform.
type HTTPClient struct {
	// timeoutSeconds bounds one call.
	// +optional
	// +kubebuilder:default=30
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=300
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
}

// Runner registration kinds.
const (
	RegistrationJIT   = "jit"
	RegistrationToken = "token"
)

// GitHubBootstrap holds what is needed to register runners with GitHub.
// +kubebuilder:validation:XValidation:rule="has(self.app) != has(self.credentials)",message="choose exactly one of app (a GitHub App) and credentials (a personal access token)"
// +kubebuilder:validation:XValidation:rule="!has(self.repository) || has(self.owner)",message="repository needs owner"
type GitHubBootstrap struct {
	// app authenticates as an installation of a GitHub App: recommended.
	// +optional
	App *GitHubApp `json:"app,omitempty"`
	// credentials is a personal access token.
	// +optional
	Credentials *SecretValueSource `json:"credentials,omitempty"`
	// owner of the repository: a user or an organisation.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9_.-]+$')",message="owner must be the name of a user or an organisation, not a URL"
	Owner string `json:"owner,omitempty"`
	// repository makes runners of that repository. It takes precedence over
	// organization.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9_.-]+$')",message="repository must be a name without its owner: the owner has a field of its own"
	Repository string `json:"repository,omitempty"`
	// organization makes runners of that organisation.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9_.-]+$')",message="organization must be the name of an organisation, not a URL"
	Organization string `json:"organization,omitempty"`
	// enterprise makes runners of that enterprise, by its slug, for all of its
	// organisations. It needs a classic token with the scope manage_runners:enterprise:
	// GitHub Apps cannot be used.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9_.-]+$')",message="enterprise must be the slug of an enterprise, not a URL"
	Enterprise string `json:"enterprise,omitempty"`
	// apiUrl is the REST API's base URL. Default: https://api.github.com. For GitHub
	// Enterprise Server: https://HOST/api/v3.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getHostname() != '' && (url(self).getScheme() == 'https' || url(self).getScheme() == 'http' && url(self).getHostname() in ['localhost', '127.0.0.1', '::1'])",message="apiUrl must be an https URL (http on loopback alone) such as https://api.github.com"
	APIURL string `json:"apiUrl,omitempty"`
	// registrationUrls are the calls that make registration tokens. Placeholders:
	// {owner}, {repo}, {org}.
	// +optional
	RegistrationURLs *GitHubURLs `json:"registrationUrls,omitempty"`
	// runnerUrls are where runners register to. Placeholders as above.
	// +optional
	RunnerURLs *GitHubURLs `json:"runnerUrls,omitempty"`
	// registration is the credential that reaches the machine: jit, a configuration for
	// one runner that works once; or token, a registration token, which anyone who
	// reads it can use to register runners for an hour.
	// +optional
	// +kubebuilder:default=jit
	// +kubebuilder:validation:Enum=jit;token
	Registration string `json:"registration,omitempty"`
	// runner is the runner program in the machine.
	// +optional
	Runner *GitHubRunner `json:"runner,omitempty"`
}

// GitLabBootstrap holds what is needed to register runners with GitLab.
type GitLabBootstrap struct {
	// credentials is an access token with the scopes create_runner and read_api, and
	// manage_runner to remove runners; of an owner of the project or group.
	Credentials SecretValueSource `json:"credentials"`
	// program is the path of gitlab-runner in the machine.
	// +optional
	// +kubebuilder:default=/usr/bin/gitlab-runner
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/')",message="gitlab.program must be an absolute path"
	Program string `json:"program,omitempty"`
	// workDir of jobs.
	// +optional
	// +kubebuilder:default=/tmp/runner-work
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/')",message="gitlab.workDir must be an absolute path"
	WorkDir string `json:"workDir,omitempty"`
}

// BuildkiteBootstrap holds what is needed to acquire jobs of Buildkite.
type BuildkiteBootstrap struct {
	// credentials is the agent token of the cluster. It never reaches a machine.
	Credentials SecretValueSource `json:"credentials"`
	// endpoint of the agent API.
	// +optional
	// +kubebuilder:default="https://agent.buildkite.com/v3"
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getHostname() != '' && (url(self).getScheme() == 'https' || url(self).getScheme() == 'http' && url(self).getHostname() in ['localhost', '127.0.0.1', '::1'])",message="buildkite.endpoint must be an https URL (http on loopback alone) such as https://agent.buildkite.com/v3"
	Endpoint string `json:"endpoint,omitempty"`
	// program is the path of buildkite-agent in the machine.
	// +optional
	// +kubebuilder:default=/usr/bin/buildkite-agent
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/')",message="buildkite.program must be an absolute path"
	Program string `json:"program,omitempty"`
	// workDir of builds.
	// +optional
	// +kubebuilder:default=/tmp/runner-work
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/')",message="buildkite.workDir must be an absolute path"
	WorkDir string `json:"workDir,omitempty"`
}

// GiteaBootstrap holds what is needed to register runners with Forgejo or Gitea.
type GiteaBootstrap struct {
	// credentials is an access token of somebody who administers the repository, owns the
	// organisation, or administers the instance. It never reaches a machine.
	Credentials SecretValueSource `json:"credentials"`
	// program is the path of the runner in the machine. Default: /usr/bin/forgejo-runner with
	// Forgejo, /usr/bin/act_runner with Gitea.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/')",message="program must be an absolute path"
	Program string `json:"program,omitempty"`
	// workDir of jobs.
	// +optional
	// +kubebuilder:default=/tmp/runner-work
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/')",message="workDir must be an absolute path"
	WorkDir string `json:"workDir,omitempty"`
}

// GitHubApp identifies an installation of a GitHub App.
type GitHubApp struct {
	// appId is the App's numeric id or client id.
	AppID SecretValueSource `json:"appId"`
	// privateKey is the App's RSA private key in PEM.
	PrivateKey SecretValueSource `json:"privateKey"`
	// installationId is the numeric id of the installation.
	InstallationID SecretValueSource `json:"installationId"`
}

// GitHubURLs are URLs with placeholders, one per scope.
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
	// organization is the URL for runners of an organisation.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^https?://[^/]')",message="organization must be a URL such as https://github.com/{org}"
	Organization string `json:"organization,omitempty"`
}

// GitHubRunner is the runner program in the machine.
// +kubebuilder:validation:XValidation:rule="has(self.downloadUrl) == has(self.downloadSha256)",message="downloadUrl and downloadSha256 belong together: a download is only run if its checksum is known"
type GitHubRunner struct {
	// downloadUrl fetches the runner if the image does not hold it. Placeholders: {os},
	// {arch}. Default: nothing is downloaded.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^https?://[^/]')",message="downloadUrl must be a URL such as https://example.com/actions-runner-{os}-{arch}.tar.gz"
	DownloadURL string `json:"downloadUrl,omitempty"`
	// downloadSha256 is the download's SHA-256 in hexadecimal. Required with downloadUrl.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9a-fA-F]{64}$')",message="downloadSha256 must be a SHA-256: 64 hexadecimal digits"
	DownloadSHA256 string `json:"downloadSha256,omitempty"`
	// installPath of the runner.
	// +optional
	// +kubebuilder:default=/opt/actions-runner
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^(/|[A-Za-z]:)')",message="installPath must be an absolute path such as /opt/actions-runner"
	InstallPath string `json:"installPath,omitempty"`
	// workDir of jobs.
	// +optional
	// +kubebuilder:default=/tmp/runner-work
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^(/|[A-Za-z]:)')",message="workDir must be an absolute path such as /tmp/runner-work"
	WorkDir string `json:"workDir,omitempty"`
	// configScript in installPath registers the runner.
	// +optional
	// +kubebuilder:default=config.sh
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_.-]+$')",message="configScript must be the name of a file in installPath, without a path"
	ConfigScript string `json:"configScript,omitempty"`
	// runScript in installPath runs the runner.
	// +optional
	// +kubebuilder:default=run.sh
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_.-]+$')",message="runScript must be the name of a file in installPath, without a path"
	RunScript string `json:"runScript,omitempty"`
	// os of the machine. The bootstrap service runs on Linux alone so far; the other names are
	// GitHub's.
	// +optional
	// +kubebuilder:default=linux
	// +kubebuilder:validation:Enum=linux;osx;win
	// +kubebuilder:validation:XValidation:rule="self == 'linux'",message="only linux works: the bootstrap service does not run on macOS and Windows guests yet"
	OS string `json:"os,omitempty"`
	// arch of the machine, in GitHub's names.
	// +optional
	// +kubebuilder:default=x64
	// +kubebuilder:validation:Enum=x64;arm64;arm
	Arch string `json:"arch,omitempty"`
}
