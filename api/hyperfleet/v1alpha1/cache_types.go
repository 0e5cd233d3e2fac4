// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// MachineCache names caches on your network, for machines that begin with an empty disk.
// Machines are made whether a cache answers or not.
type MachineCache struct {
	// registryMirrors are pull-through caches of Docker Hub, which Docker in the machine asks
	// first, in this order: they become registry-mirrors of /etc/docker/daemon.json.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	RegistryMirrors []CacheURL `json:"registryMirrors,omitempty"`
	// actionsCacheUrl is a server for actions/cache. Runners of GitHub Actions have it as
	// CUSTOM_ACTIONS_RESULTS_URL and ACTIONS_RESULTS_URL, and act_runner of Gitea as its
	// cache.external_server. It gets the tokens of jobs, and other platforms make no use of it.
	// +optional
	ActionsCacheURL CacheURL `json:"actionsCacheUrl,omitempty"`
}

// CacheURL is where machines find a cache: https, or http on a private network.
//
// +kubebuilder:validation:MaxLength=255
// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getScheme() in ['http', 'https'] && size(url(self).getHostname()) > 0 && !self.contains('@') && !self.contains('?')",message="it must be a URL such as https://cache.example.com, without user, password and query"
// +kubebuilder:validation:XValidation:rule="!self.startsWith('http:') || self.matches('^http://((10|127)([.][0-9]+){3}|192[.]168([.][0-9]+){2}|172[.](1[6-9]|2[0-9]|3[01])([.][0-9]+){2}|[[](f[cd][0-9a-f:]+|::1)[]]|[A-Za-z][A-Za-z0-9-]*|([A-Za-z0-9-]+[.])+(internal|local|lan|home[.]arpa))(:|/|$)')",message="http is for private addresses (10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, fc00::/7) and names without a dot or within .internal, .local, .lan and .home.arpa: use https"
type CacheURL string

// EnvironmentValue is the value of an environment variable that is no secret.
//
// +kubebuilder:validation:MaxLength=2048
// +kubebuilder:validation:XValidation:rule=`!self.matches('^[A-Za-z][A-Za-z0-9+.-]*://[^/@]*:[^/@]*@')`,message="it must not hold a password: every job can read it, and so can all who may read the template"
type EnvironmentValue string
