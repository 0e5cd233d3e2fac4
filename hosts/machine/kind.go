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

// Object is an object of any kind of host.
type Object interface {
	step.Object
	// Host points at what is known of the host, in the object's status.
	Host() *v1alpha1.HostStatus
}

// Kind is all that the core has to know of one kind of host. Its methods are called from
// several reconciles at a time, each with an object of its own, and may not block for long.
type Kind interface {
	Catalog
	Contents
	Life
}

// Catalog is what there is of a kind.
type Catalog interface {
	// Name of the kind, such as LinuxMachine.
	Name() string
	// New gives an empty object, and NewList an empty list of them.
	New() Object
	NewList() client.ObjectList
	// FleetName is the HostFleet of the object, in its namespace.
	FleetName(host Object) string
	// HostKeys is what the host's spec says of its key.
	HostKeys(host Object) HostKeys
	// Like gives a new host that is made as another one; nil for kinds whose hosts nobody orders.
	Like(host Object) Object
	// Hash is the digest of the configuration of all hosts of the kind: computed once, when
	// the program starts. Empty: nothing is pushed to any.
	Hash() string
}

// Contents is what a host should have, and how it gets there.
type Contents interface {
	// Access says how the host is reached. Errors have a class (kit/errclass).
	Access(ctx context.Context, secrets Secrets, host Object) (Access, error)
	// NamesKubeconfig says whether the host's spec names what it joins its cluster with.
	NamesKubeconfig(host Object) bool
	// Plan renders what the host should have, given how it is reached. Errors have a class.
	Plan(ctx context.Context, secrets Secrets, host Object, access Access) (plan.Plan, error)
	// AskOS is a script that asks the host about its operating system and prints what readOS reads:
	// the version that it has, and how an update is going; false for kinds whose operating
	// system is not updated.
	AskOS(host Object, access Access, ask OSAsk) (plan.Part, bool)
}

// Life is how a host is had and given back.
type Life interface {
	// Provision brings about a machine that Access leads to, and is called on every pass: it
	// has to be quick when there is one. It may set phase and addresses.
	Provision(ctx context.Context, host Object) step.Result
	// BeforeBoot is called before each first boot, with status.bootstrapAttempts telling how
	// many the host has refused; whatever is not done keeps it from beginning. It may set the
	// count back, for a machine that was wiped.
	BeforeBoot(ctx context.Context, host Object) step.Result
	// Stamp is called when a push has succeeded, before the status is written.
	Stamp(host Object)
	// Leave is what takes off a host, before Release, what lets it join its cluster; false for
	// one that Release wipes.
	Leave(host Object) (plan.Part, bool)
	// Release gives the machine back, on deletion. It is called until it is done.
	Release(ctx context.Context, host Object) step.Result
}

// Secrets reads values that are kept in Secrets.
type Secrets interface {
	// Secret reads one key of a Secret in a namespace, if it may be sent there. Errors are of
	// class Configuration and name the Secret and the fix, except where the API server did
	// not answer.
	Secret(ctx context.Context, namespace string, ref v1alpha1.LocalSecretKeySelector, to credential.Sent) (log.Secret, error)
}

// HostKeys is what a host's spec says of its key.
type HostKeys struct {
	ssh.Trust

	// AcceptNew trusts the key that the host shows first, where the spec tells of none.
	AcceptNew bool
}

// HostKeysOf gives what the three fields of a spec say.
func HostKeysOf(key string, authorities []v1alpha1.SSHCertAuthority, checking v1alpha1.SSHHostKeyChecking) HostKeys {
	out := HostKeys{Trust: ssh.Trust{HostKey: key}, AcceptNew: checking == v1alpha1.HostKeyAcceptNew}
	for _, authority := range authorities {
		out.CertAuthorities = append(out.CertAuthorities, string(authority))
	}

	return out
}

// Or is what the host has to show, where this key of its is on record.
func (k HostKeys) Or(recorded string) ssh.Trust {
	if k.Empty() {
		return ssh.Trust{HostKey: recorded}
	}

	return k.Trust
}

// Access is how a host is reached.
type Access struct {
	// Address as host:port, and Fallbacks, where the host is tried after it.
	Address   string
	Fallbacks []string
	User      string
	// PrivateKey as OpenSSH or PEM text; Password where there is no key. Either may be empty.
	PrivateKey, Password log.Secret
	// Kubeconfig that was made for the host, where it names none.
	Kubeconfig log.Secret
}

// Servers are all to which what the host is given may be sent.
func (a Access) Servers() []string { return append([]string{a.Address}, a.Fallbacks...) }

// At gives hosts with a port.
func At(hosts []string, port int32) []string {
	var out []string
	for _, host := range hosts {
		out = append(out, net.JoinHostPort(host, strconv.Itoa(int(port))))
	}

	return out
}
