// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// MachineCache names caches in your network for machines, which start with an empty disk. Machines are
// created even if a cache is unavailable.
type MachineCache struct {
	// registryMirrors are pull-through caches of Docker Hub. Docker in the machine tries them first, in
	// this order. They are written to registry-mirrors in /etc/docker/daemon.json.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	RegistryMirrors []CacheURL `json:"registryMirrors,omitempty"`
	// actionsCacheUrl is the URL of a server for actions/cache. Runners of GitHub Actions get it as
	// CUSTOM_ACTIONS_RESULTS_URL and ACTIONS_RESULTS_URL, and act_runner of Gitea gets it as
	// cache.external_server. The server receives the tokens of jobs. Other CI platforms do not use it.
	// +optional
	ActionsCacheURL CacheURL `json:"actionsCacheUrl,omitempty"`
}

// CacheURL is the URL of a cache. It must use https, or http with a private address.
//
// +kubebuilder:validation:MaxLength=255
// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getScheme() in ['http', 'https'] && size(url(self).getHostname()) > 0 && !self.contains('@') && !self.contains('?')",message="it must be a URL such as https://cache.example.com, without user, password and query"
// +kubebuilder:validation:XValidation:rule="!self.startsWith('http:') || self.matches('^http://((10|127)([.][0-9]+){3}|192[.]168([.][0-9]+){2}|172[.](1[6-9]|2[0-9]|3[01])([.][0-9]+){2}|[[](f[cd][0-9a-f:]+|::1)[]]|[A-Za-z][A-Za-z0-9-]*|([A-Za-z0-9-]+[.])+(internal|local|lan|home[.]arpa))(:|/|$)')",message="http is only allowed for private addresses (10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, fc00::/7) and for names without a dot or in .internal, .local, .lan or .home.arpa: use https"
type CacheURL string

// EnvironmentValue is the value of an environment variable. It must not be secret.
//
// +kubebuilder:validation:MaxLength=2048
// +kubebuilder:validation:XValidation:rule=`!self.matches('^[A-Za-z][A-Za-z0-9+.-]*://[^/@]*:[^/@]*@')`,message="it must not contain a password, because every job and everyone who can read the template can read it: remove the password from the URL"
type EnvironmentValue string
