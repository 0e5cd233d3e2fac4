// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"net/url"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// ReasonServerNotAllowed is the reason of the error of CheckDestination.
const ReasonServerNotAllowed = "ServerNotAllowed"

// Destination is the set of servers that a value of a Secret is sent to. The zero value has no servers.
type Destination struct {
	// Servers are the servers, in the form of bounds.Server.
	Servers []string
	// DefaultServers are the servers that a Secret without a list of allowed servers may be sent to.
	// They are the public servers of a platform, or the servers in the object that refers to the
	// Secret.
	DefaultServers []string
}

// NewDestination returns the destination for servers in the form host:port. Use it if the servers are
// named in an object that belongs to the owner of the Secret. All of these servers are default servers.
// Empty strings are ignored.
func NewDestination(servers ...string) Destination {
	var normalized []string

	for _, server := range servers {
		if server != "" {
			normalized = append(normalized, bounds.NormalizeServer(server))
		}
	}

	return Destination{Servers: normalized, DefaultServers: normalized}
}

// DestinationOfURL returns the destination for the server of a URL. If the text is not a URL with a
// host, the destination is empty.
func DestinationOfURL(text string) Destination {
	parsed, err := url.Parse(text)
	if err != nil || parsed.Host == "" {
		return Destination{}
	}

	return NewDestination(bounds.Server(parsed))
}

// DestinationOfKubeconfig returns the destination for the API server of the current context of a
// kubeconfig. If the text is not a valid kubeconfig, the destination is empty. Such a kubeconfig
// cannot be used to send anything.
func DestinationOfKubeconfig(text []byte) Destination {
	parsed, err := load(text)
	if err != nil {
		return Destination{}
	}

	cluster, err := currentCluster(parsed)
	if err != nil {
		return Destination{}
	}

	return DestinationOfURL(cluster.Server)
}

// CheckDestination returns an error if the Secret's value may not be sent to one of the servers. If
// the Secret has the annotation with its allowed servers, only this list counts. Otherwise the
// default servers and the servers that an administrator has listed in policy are allowed. policy
// may be nil. The error has class Configuration and says how to allow the server.
func CheckDestination(secret metav1.Object, destination Destination, policy *bounds.EgressPolicy) error {
	list, hasList := secret.GetAnnotations()[v1alpha1.AnnotationAllowedServers]

	for _, server := range destination.Servers {
		isAllowed := slices.Contains(destination.DefaultServers, server) || policy.IsListed(server)
		fix := ", or list the server in runners.platformURLs of the operator's configuration"

		if hasList {
			isAllowed = slices.ContainsFunc(strings.Split(list, ","), func(a string) bool {
				return bounds.NormalizeServer(a) == server
			})
			fix = ""
		}

		if !isAllowed {
			return errclass.New(errclass.Configuration, ReasonServerNotAllowed,
				"send secret %s/%s to %s: the secret does not allow this server: annotate the secret with %s=%s%s",
				secret.GetNamespace(), secret.GetName(), server, v1alpha1.AnnotationAllowedServers, server, fix)
		}
	}

	return nil
}
