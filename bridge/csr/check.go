// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"bytes"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"net"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
)

// Who asks, and for whom. The account is the one whose token HyperShift puts into the
// workers' ignition; groups are those that the API server gives it:
// https://kubernetes.io/docs/reference/access-authn-authz/kubelet-tls-bootstrapping/.
const (
	bootstrapper   = "system:serviceaccount:openshift-machine-config-operator:node-bootstrapper"
	nodePrefix     = "system:node:"
	groupNodes     = "system:nodes"
	pemRequestType = "CERTIFICATE REQUEST"
)

// Phases of a DPU in which its worker needs certificates.
const (
	phaseJoins    = "DPU Cluster Config"
	phaseReady    = "Ready"
	phaseReleased = "Node Effect Removal"
)

// Reasons of refusals.
const (
	ReasonRequest        = "Request"
	ReasonRequester      = "Requester"
	ReasonUsages         = "Usages"
	ReasonSubject        = "Subject"
	ReasonOrganization   = "Organization"
	ReasonCommonName     = "CommonName"
	ReasonExtension      = "Extension"
	ReasonAlternatives   = "SubjectAlternativeNames"
	ReasonDPUNotFound    = "DPUNotFound"
	ReasonDPUElsewhere   = "DPUOfAnotherCluster"
	ReasonDPUPhase       = "DPUPhase"
	ReasonNodeReady      = "NodeReadyAlready"
	ReasonNodeNotFound   = "NodeNotFound"
	ReasonAddressUnknown = "AddressNotOfNode"
	ReasonAddressTaken   = "AddressOfAnotherNode"
)

// Refusal is why a request is not approved.
type Refusal struct {
	// Reason in CamelCase, one of the constants.
	Reason string
	// Message for a person.
	Message string
}

func refuse(reason, format string, args ...any) *Refusal {
	return &Refusal{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// DPU is what is read of a worker's DPU.
type DPU struct {
	// Namespace and Cluster are where it joins: the DPUCluster of its spec.
	Namespace, Cluster string
	Phase              string
}

// Facts are what a request is held against.
type Facts struct {
	// Namespace and Cluster name the bridge's DPUCluster.
	Namespace, Cluster string
	// DPU of the node's name; nil: there is none.
	DPU *DPU
	// Node of the hosted cluster; nil: there is none.
	Node *corev1.Node
	// HasAddress names another node of the hosted cluster that has an address; empty: none.
	HasAddress func(address string) string
}

// Concerns says whether a request is one of a kubelet's two certificates.
func Concerns(object *certificatesv1.CertificateSigningRequest) bool {
	return object.Spec.SignerName == certificatesv1.KubeAPIServerClientKubeletSignerName ||
		object.Spec.SignerName == certificatesv1.KubeletServingSignerName
}

// Pending says whether nobody has decided about a request.
func Pending(object *certificatesv1.CertificateSigningRequest) bool {
	return len(object.Status.Certificate) == 0 &&
		!slices.ContainsFunc(object.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
			return c.Type == certificatesv1.CertificateApproved || c.Type == certificatesv1.CertificateDenied ||
				c.Type == certificatesv1.CertificateFailed
		})
}

// request is one that is checked.
type request struct {
	spec    certificatesv1.CertificateSigningRequestSpec
	parsed  *x509.CertificateRequest
	node    string
	serving bool
}

// Read checks all that can be told of a request without looking elsewhere: who asks, for
// what, and in whose name. It gives the name of the node.
func Read(object *certificatesv1.CertificateSigningRequest) (string, *Refusal) {
	r, refusal := read(object)
	if refusal != nil {
		return "", refusal
	}

	return r.node, nil
}

func read(object *certificatesv1.CertificateSigningRequest) (*request, *Refusal) {
	r, refusal := parse(object)
	if refusal != nil {
		return nil, refusal
	}

	for _, check := range []func(*request) *Refusal{requester, usages, subject, alternatives} {
		if refusal := check(r); refusal != nil {
			return nil, refusal
		}
	}

	return r, nil
}

// Check says why a request must not be approved; nil: it may be.
func Check(object *certificatesv1.CertificateSigningRequest, facts Facts) *Refusal {
	r, refusal := read(object)
	if refusal != nil {
		return refusal
	}

	if refusal := dpu(r, facts); refusal != nil {
		return refusal
	}

	if r.serving {
		return addresses(r, facts)
	}

	if facts.Node != nil && ready(facts.Node) {
		return refuse(ReasonNodeReady, "node %s is in the cluster and ready: it has its certificate", r.node)
	}

	return nil
}

func parse(object *certificatesv1.CertificateSigningRequest) (*request, *Refusal) {
	block, rest := pem.Decode(object.Spec.Request)
	if block == nil || block.Type != pemRequestType || len(block.Headers) > 0 || len(bytes.TrimSpace(rest)) > 0 {
		return nil, refuse(ReasonRequest, "it is not one %s in PEM", pemRequestType)
	}

	parsed, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, refuse(ReasonRequest, "it can't be read: %v", err)
	}

	if err := parsed.CheckSignature(); err != nil {
		return nil, refuse(ReasonRequest, "it is not signed by the key that it is for: %v", err)
	}

	node, found := strings.CutPrefix(parsed.Subject.CommonName, nodePrefix)
	if !found || node == "" {
		return nil, refuse(ReasonCommonName, "its common name is %q, want %sNAME", parsed.Subject.CommonName, nodePrefix)
	}

	return &request{
		spec: object.Spec, parsed: parsed, node: node,
		serving: object.Spec.SignerName == certificatesv1.KubeletServingSignerName,
	}, nil
}

// requester: the first certificate is asked for by the account that workers start with, the
// serving one by the node itself.
func requester(r *request) *Refusal {
	user := bootstrapper
	groups := []string{"system:authenticated", "system:serviceaccounts", "system:serviceaccounts:openshift-machine-config-operator"}

	if r.serving {
		user, groups = nodePrefix+r.node, []string{"system:authenticated", groupNodes}
	}

	if r.spec.Username != user {
		return refuse(ReasonRequester, "%q asks for it, want %q", r.spec.Username, user)
	}

	have := slices.Clone(r.spec.Groups)
	slices.Sort(have)

	if !slices.Equal(have, groups) {
		return refuse(ReasonRequester, "groups %q ask for it, want %q", have, groups)
	}

	return nil
}

// usages are exactly those that kubelets ask for; key encipherment is RSA's alone.
func usages(r *request) *Refusal {
	want := []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth, certificatesv1.UsageDigitalSignature}
	if r.serving {
		want = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	}

	have := slices.Clone(r.spec.Usages)
	slices.Sort(have)

	if _, is := r.parsed.PublicKey.(*rsa.PublicKey); is && slices.Contains(have, certificatesv1.UsageKeyEncipherment) {
		want = append(want, certificatesv1.UsageKeyEncipherment)
		slices.Sort(want)
	}

	if !slices.Equal(have, want) {
		return refuse(ReasonUsages, "its usages are %q, want %q", have, want)
	}

	return nil
}

// subject is an organisation and a common name, and nothing else.
func subject(r *request) *Refusal {
	if !slices.Equal(r.parsed.Subject.Organization, []string{groupNodes}) {
		return refuse(ReasonOrganization, "its organisations are %q, want only %q", r.parsed.Subject.Organization, groupNodes)
	}

	if names := len(r.parsed.Subject.Names); names != 2 {
		return refuse(ReasonSubject, "its subject has %d parts, want an organisation and a common name", names)
	}

	return nil
}

// alternatives: the first certificate has no alternative names, the serving one has the
// node's name and addresses.
func alternatives(r *request) *Refusal {
	alternative := asn1.ObjectIdentifier{2, 5, 29, 17}
	if at := slices.IndexFunc(r.parsed.Extensions, func(e pkix.Extension) bool { return !e.Id.Equal(alternative) }); at >= 0 {
		return refuse(ReasonExtension, "it asks for the extension %s", r.parsed.Extensions[at].Id)
	}

	if len(r.parsed.EmailAddresses)+len(r.parsed.URIs) > 0 {
		return refuse(ReasonAlternatives, "its alternative names have e-mail addresses or URIs")
	}

	if !r.serving {
		if len(r.parsed.Extensions) > 0 {
			return refuse(ReasonAlternatives, "a client's certificate has no alternative names")
		}

		return nil
	}

	if !slices.Contains(r.parsed.DNSNames, r.node) {
		return refuse(ReasonAlternatives, "its alternative names lack the node's name %q", r.node)
	}

	for _, ip := range r.parsed.IPAddresses {
		if ip.IsLoopback() || ip.IsUnspecified() || ip.IsMulticast() || ip.IsLinkLocalUnicast() || ip.Equal(net.IPv4bcast) {
			return refuse(ReasonAlternatives, "%s is no node's address", ip)
		}
	}

	return nil
}

// dpu: the node is a DPU of the bridge's DPUCluster, and in a phase that asks.
func dpu(r *request, facts Facts) *Refusal {
	if facts.DPU == nil {
		return refuse(ReasonDPUNotFound, "there is no DPU %s/%s", facts.Namespace, r.node)
	}

	if facts.DPU.Namespace != facts.Namespace || facts.DPU.Cluster != facts.Cluster {
		return refuse(ReasonDPUElsewhere, "DPU %s joins DPUCluster %q, not %q", r.node,
			facts.DPU.Namespace+"/"+facts.DPU.Cluster, facts.Namespace+"/"+facts.Cluster)
	}

	phases := []string{phaseJoins}
	if r.serving {
		phases = append(phases, phaseReady, phaseReleased)
	}

	if !slices.Contains(phases, facts.DPU.Phase) {
		return refuse(ReasonDPUPhase, "DPU %s is in phase %q, want %q", r.node, facts.DPU.Phase, phases)
	}

	return nil
}

// addresses: a serving certificate is for names and addresses that the node has, and no
// other node.
func addresses(r *request, facts Facts) *Refusal {
	if facts.Node == nil {
		return refuse(ReasonNodeNotFound, "node %s is not in the cluster yet", r.node)
	}

	wanted := slices.Clone(r.parsed.DNSNames)
	for _, ip := range r.parsed.IPAddresses {
		wanted = append(wanted, ip.String())
	}

	for _, address := range wanted {
		if address != r.node && !slices.Contains(AddressesOf(facts.Node), address) {
			return refuse(ReasonAddressUnknown, "%s is not among the addresses of node %s", address, r.node)
		}

		if other := facts.HasAddress(address); other != "" && other != r.node {
			return refuse(ReasonAddressTaken, "%s is an address of node %s as well", address, other)
		}
	}

	return nil
}

// AddressesOf a node: names as they are, IPs in their usual form.
func AddressesOf(node *corev1.Node) []string {
	var out []string

	for _, a := range node.Status.Addresses {
		address := a.Address
		if ip := net.ParseIP(address); ip != nil {
			address = ip.String()
		}

		if !slices.Contains(out, address) {
			out = append(out, address)
		}
	}

	return out
}

func ready(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}
