// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"net"
	"strconv"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/hosts/ssh"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// Object is the API object of any kind of host.
type Object interface {
	step.Object
	// Host returns a pointer to the common host status in the object's status.
	Host() *v1alpha1.HostStatus
}

// Kind is everything that this package needs to know about a kind of host. Several reconciles call
// its methods concurrently, each with an object of its own. The methods must not block for long.
type Kind interface {
	Catalog
	Contents
	Lifecycle
}

// Catalog describes a kind and its objects.
type Catalog interface {
	// Name returns the name of the kind, such as LinuxMachine.
	Name() string
	// New returns an empty object, and NewList returns an empty list.
	New() Object
	NewList() client.ObjectList
	// FleetName returns the name of the object's HostFleet, which is in the same namespace.
	FleetName(host Object) string
	// HostKeys returns what the host's spec says about the host's key.
	HostKeys(host Object) HostKeys
	// NewLike returns a new host with the same spec as another host. It returns nil for kinds whose
	// hosts can't be ordered.
	NewLike(host Object) Object
	// Hash returns the digest of the configuration of all hosts of the kind. It is computed once,
	// when the program starts. If it is empty, nothing is pushed to any host.
	Hash() string
}

// Contents renders what is pushed to a host and says how the host is reached.
type Contents interface {
	// Access returns how the host is reached. Errors have a class (kit/errclass).
	Access(ctx context.Context, secrets Secrets, host Object) (Access, error)
	// SecretsForRelease returns the names of the Secrets without which the host can't be released. hasCredential is
	// whether the host has, or gets, a credential that the operator issues.
	SecretsForRelease(host Object, hasCredential bool) []string
	// HasKubeconfig returns true if the host's spec names the kubeconfig with which the host joins
	// its cluster.
	HasKubeconfig(host Object) bool
	// RenderPlan renders the plan of a host that is reached by access. Errors have a class.
	RenderPlan(ctx context.Context, secrets Secrets, host Object, access Access) (plan.Plan, error)
	// RenderOSStep returns the script of a step of an update. The script prints the version of the host's
	// operating system and the progress of the update, in the format that parseOSOutput parses.
	// RenderOSStep returns false for kinds whose operating system is not updated.
	RenderOSStep(host Object, access Access, params OSStepParams) (plan.Part, bool)
}

// Lifecycle provisions and releases hosts.
type Lifecycle interface {
	// Provision provides a machine that can be reached with Access. It is called in every
	// reconcile, so it must be quick if the machine exists. It may set the phase and the addresses.
	Provision(ctx context.Context, host Object) step.Result
	// BeforeBoot is called before each first boot. status.bootstrapAttempts is the number of first
	// boots that the host has refused. If the result is not done, the first boot does not start.
	// BeforeBoot may reset the count for a machine that was wiped.
	BeforeBoot(ctx context.Context, host Object) step.Result
	// Marks returns the annotations that repeat the parts of a host's status that only this kind knows, so
	// that a backup without statuses contains them.
	Marks(host Object) Marks
	// ReadBack restores these parts of the status from the annotations. It is called before Provision or
	// Release for a host whose status was lost.
	ReadBack(host Object)
	// RecordPush is called after a successful push, before the status is written.
	RecordPush(host Object)
	// RenderCredentialRemoval returns a script that runs before Release and deletes the credential
	// with which the host joins its cluster. It returns false if Release wipes the host.
	RenderCredentialRemoval(host Object) (plan.Part, bool)
	// Release releases the machine when the host is deleted. It is called until its result is done.
	Release(ctx context.Context, host Object) step.Result
}

// Secrets reads values from Secrets.
type Secrets interface {
	// Secret returns the value of one key of a Secret if the Secret allows its use for the
	// destination. Errors are of class Configuration and name the Secret and the fix, except if the
	// API server did not respond.
	Secret(
		ctx context.Context, namespace string, ref v1alpha1.LocalSecretKeySelector, destination credential.Destination,
	) (log.Secret, error)
}

// HostKeys is what a host's spec says about the host's key.
type HostKeys struct {
	ssh.Trust

	// AcceptNew trusts the first key that the host presents, if the spec names no key and no
	// certificate authority.
	AcceptNew bool
}

// NewHostKeys returns the HostKeys of the fields of a spec.
func NewHostKeys(spec v1alpha1.SSHHostKeys) HostKeys {
	out := HostKeys{Trust: ssh.Trust{HostKey: spec.SSHHostKey}, AcceptNew: spec.SSHHostKeyChecking == v1alpha1.HostKeyAcceptNew}
	for _, authority := range spec.SSHHostCertAuthorities {
		out.CertAuthorities = append(out.CertAuthorities, string(authority))
	}

	return out
}

// TrustOr returns what the host's key must match: the keys of the spec, or the recorded key if the
// spec names none.
func (k HostKeys) TrustOr(recorded string) ssh.Trust {
	if k.IsEmpty() {
		return ssh.Trust{HostKey: recorded}
	}

	return k.Trust
}

// Access is how a host is reached.
type Access struct {
	// Address is host:port. Fallbacks are the addresses that are tried after it.
	Address   string
	Fallbacks []string
	User      string
	// PrivateKey is OpenSSH or PEM text. Password is used if there is no private key. Either may be
	// empty.
	PrivateKey, Password log.Secret
	// Kubeconfig is the issued credential of a host whose spec names no kubeconfig.
	Kubeconfig log.Secret
}

// Servers returns all addresses to which the host's credentials may be sent.
func (a Access) Servers() []string { return append([]string{a.Address}, a.Fallbacks...) }

// JoinHostsPort returns host:port for each of the hosts.
func JoinHostsPort(hosts []string, port int32) []string {
	var out []string
	for _, host := range hosts {
		out = append(out, net.JoinHostPort(host, strconv.Itoa(int(port))))
	}

	return out
}
