// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"net/url"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/httpbound"
	"github.com/hyperfleet/hyperfleet/kit/kubeconfig"
)

// ReasonServerNotAllowed is the reason of Check's error.
const ReasonServerNotAllowed = "ServerNotAllowed"

// Sent is where a value goes. The zero value goes to nobody.
type Sent struct {
	// Servers that it is sent to, as httpbound.Server names them.
	Servers []string
	// Usual are those of them that a Secret may be sent to which says nothing: a platform's
	// public ones, or what its owner named beside it.
	Usual []string
}

// To is for servers, as host:port, that are named by an object of the Secret's own owner: a
// Secret that says nothing may be sent there. Empty is nobody.
func To(named ...string) Sent {
	var servers []string

	for _, server := range named {
		if server != "" {
			servers = append(servers, httpbound.CanonicalServer(server))
		}
	}

	return Sent{Servers: servers, Usual: servers}
}

// ToURL is To for the server of a URL; nobody if it is none.
func ToURL(text string) Sent {
	parsed, err := url.Parse(text)
	if err != nil || parsed.Host == "" {
		return Sent{}
	}

	return To(httpbound.Server(parsed))
}

// ToKubeconfig is To for the API server that a kubeconfig's current context leads to; nobody
// if it is no kubeconfig, which can't be used then.
func ToKubeconfig(text []byte) Sent {
	server, err := kubeconfig.Server(text)
	if err != nil {
		return Sent{}
	}

	return ToURL(server)
}

// Check makes sure that a Secret allows where its value goes: by its own list, which is its
// owner's word and final, and else by the usual servers and those that an administrator has
// listed; reach may be nil. The error is of class Configuration and says how to allow it.
func Check(secret metav1.Object, to Sent, reach *httpbound.Reach) error {
	list, own := secret.GetAnnotations()[v1alpha1.AnnotationAllowedServers]

	for _, server := range to.Servers {
		allowed := slices.Contains(to.Usual, server) || reach.Lists(server)
		fix := ", or list the server in runners.platformURLs of the operator's configuration"

		if own {
			allowed = slices.ContainsFunc(strings.Split(list, ","), func(a string) bool { return httpbound.CanonicalServer(a) == server })
			fix = ""
		}

		if !allowed {
			return errclass.New(errclass.Configuration, ReasonServerNotAllowed,
				"send secret %s/%s to %s: the secret does not allow it: annotate it %s=%s%s",
				secret.GetNamespace(), secret.GetName(), server, v1alpha1.AnnotationAllowedServers, server, fix)
		}
	}

	return nil
}
