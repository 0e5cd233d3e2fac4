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

// The expected requesters. bootstrapUser is the service account whose token HyperShift puts into the
// workers' ignition. The API server adds the groups:
// https://kubernetes.io/docs/reference/access-authn-authz/kubelet-tls-bootstrapping/.
const (
	bootstrapUser  = "system:serviceaccount:openshift-machine-config-operator:node-bootstrapper"
	nodePrefix     = "system:node:"
	nodesGroup     = "system:nodes"
	pemRequestType = "CERTIFICATE REQUEST"
)

// Phases of a DPU in which its worker needs certificates.
const (
	phaseClusterConfig     = "DPU Cluster Config"
	phaseReady             = "Ready"
	phaseNodeEffectRemoval = "Node Effect Removal"
)

// Reasons for which a request is not approved.
const (
	ReasonRequest                 = "Request"
	ReasonRequester               = "Requester"
	ReasonUsages                  = "Usages"
	ReasonSubject                 = "Subject"
	ReasonOrganization            = "Organization"
	ReasonCommonName              = "CommonName"
	ReasonExtension               = "Extension"
	ReasonSubjectAlternativeNames = "SubjectAlternativeNames"
	ReasonDPUNotFound             = "DPUNotFound"
	ReasonDPUOfAnotherCluster     = "DPUOfAnotherCluster"
	ReasonDPUPhase                = "DPUPhase"
	ReasonNodeAlreadyReady        = "NodeAlreadyReady"
	ReasonNodeNotFound            = "NodeNotFound"
	ReasonAddressNotOfNode        = "AddressNotOfNode"
	ReasonAddressOfAnotherNode    = "AddressOfAnotherNode"
)

// Refusal says why a request is not approved.
type Refusal struct {
	// Reason is one of the constants, in CamelCase.
	Reason string
	// Message explains the reason to a person.
	Message string
}

func newRefusal(reason, format string, args ...any) *Refusal {
	return &Refusal{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// DPU holds the fields of a worker's DPU that the checks need.
type DPU struct {
	// Namespace and Cluster name the DPUCluster in the DPU's spec, which the DPU joins.
	Namespace, Cluster string
	Phase              string
}

// Facts is the state of both clusters that a request is checked against.
type Facts struct {
	// Namespace and Cluster name the bridge's DPUCluster.
	Namespace, Cluster string
	// DPU is the DPU with the name of the node. It is nil if the DPU does not exist.
	DPU *DPU
	// Node is the node in the hosted cluster. It is nil if the node does not exist.
	Node *corev1.Node
	// OtherNodeWithAddress returns the name of another node of the hosted cluster that has the address,
	// and the empty string if no other node has it.
	OtherNodeWithAddress func(address string) string
}

// IsKubeletRequest returns whether the request is for one of a kubelet's two certificates.
func IsKubeletRequest(object *certificatesv1.CertificateSigningRequest) bool {
	return object.Spec.SignerName == certificatesv1.KubeAPIServerClientKubeletSignerName ||
		object.Spec.SignerName == certificatesv1.KubeletServingSignerName
}

// IsPending returns whether the request is neither approved, denied, failed nor signed.
func IsPending(object *certificatesv1.CertificateSigningRequest) bool {
	return len(object.Status.Certificate) == 0 &&
		!slices.ContainsFunc(object.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
			return c.Type == certificatesv1.CertificateApproved || c.Type == certificatesv1.CertificateDenied ||
				c.Type == certificatesv1.CertificateFailed
		})
}

// isRenewal returns whether a node requests its own client certificate again. Kubernetes itself approves such a
// request (selfnodeclient), so this package neither approves nor refuses it.
func isRenewal(object *certificatesv1.CertificateSigningRequest) bool {
	if object.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName ||
		!strings.HasPrefix(object.Spec.Username, nodePrefix) {
		return false
	}

	r, refusal := parse(object)

	return refusal == nil && object.Spec.Username == nodePrefix+r.node
}

// parsedRequest is a request that is being checked.
type parsedRequest struct {
	spec      certificatesv1.CertificateSigningRequestSpec
	request   *x509.CertificateRequest
	node      string
	isServing bool
}

// CheckContent runs the checks that need nothing but the request: the requester, the usages, the subject
// and the alternative names. It returns the name of the node.
func CheckContent(object *certificatesv1.CertificateSigningRequest) (node string, refusal *Refusal) {
	r, refusal := parseAndCheckContent(object)
	if refusal != nil {
		return "", refusal
	}

	return r.node, nil
}

// parseAndCheckContent parses a request and runs the checks that need nothing but the request.
func parseAndCheckContent(object *certificatesv1.CertificateSigningRequest) (*parsedRequest, *Refusal) {
	r, refusal := parse(object)
	if refusal != nil {
		return nil, refusal
	}

	for _, check := range []func(*parsedRequest) *Refusal{checkRequester, checkUsages, checkSubject, checkAlternativeNames} {
		if refusal := check(r); refusal != nil {
			return nil, refusal
		}
	}

	return r, nil
}

// Check returns why a request must not be approved, and nil if it may be approved.
func Check(object *certificatesv1.CertificateSigningRequest, facts Facts) *Refusal {
	r, refusal := parseAndCheckContent(object)
	if refusal != nil {
		return refusal
	}

	if refusal := checkDPU(r, facts); refusal != nil {
		return refusal
	}

	if r.isServing {
		return checkAddresses(r, facts)
	}

	if facts.Node != nil && isReady(facts.Node) {
		return newRefusal(ReasonNodeAlreadyReady, "node %s is already ready in the cluster and therefore has its certificate", r.node)
	}

	return nil
}

// parse parses a request and verifies its signature. It refuses a request that is not exactly one PEM
// block, and a request whose common name does not name a node.
func parse(object *certificatesv1.CertificateSigningRequest) (*parsedRequest, *Refusal) {
	block, rest := pem.Decode(object.Spec.Request)
	if block == nil || block.Type != pemRequestType || len(block.Headers) > 0 || len(bytes.TrimSpace(rest)) > 0 {
		return nil, newRefusal(ReasonRequest, "the request must be exactly one %s in PEM", pemRequestType)
	}

	parsed, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, newRefusal(ReasonRequest, "the request cannot be parsed: %v", err)
	}

	if err := parsed.CheckSignature(); err != nil {
		return nil, newRefusal(ReasonRequest, "the request is not signed with its own key: %v", err)
	}

	node, found := strings.CutPrefix(parsed.Subject.CommonName, nodePrefix)
	if !found || node == "" {
		return nil, newRefusal(ReasonCommonName, "the common name is %q and must be %sNAME", parsed.Subject.CommonName, nodePrefix)
	}

	return &parsedRequest{
		spec: object.Spec, request: parsed, node: node,
		isServing: object.Spec.SignerName == certificatesv1.KubeletServingSignerName,
	}, nil
}

// checkRequester checks who created the request. The account that workers start with requests the client
// certificate. The node itself requests the serving certificate.
func checkRequester(r *parsedRequest) *Refusal {
	user := bootstrapUser
	groups := []string{"system:authenticated", "system:serviceaccounts", "system:serviceaccounts:openshift-machine-config-operator"}

	if r.isServing {
		user, groups = nodePrefix+r.node, []string{"system:authenticated", nodesGroup}
	}

	if r.spec.Username != user {
		return newRefusal(ReasonRequester, "the requester is %q and must be %q", r.spec.Username, user)
	}

	requesterGroups := slices.Clone(r.spec.Groups)
	slices.Sort(requesterGroups)

	if !slices.Equal(requesterGroups, groups) {
		return newRefusal(ReasonRequester, "the requester's groups are %q and must be %q", requesterGroups, groups)
	}

	return nil
}

// checkUsages checks that the usages are exactly those that kubelets request. Key encipherment is
// allowed only for RSA keys.
func checkUsages(r *parsedRequest) *Refusal {
	required := []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth, certificatesv1.UsageDigitalSignature}
	if r.isServing {
		required = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	}

	requested := slices.Clone(r.spec.Usages)
	slices.Sort(requested)

	if _, ok := r.request.PublicKey.(*rsa.PublicKey); ok && slices.Contains(requested, certificatesv1.UsageKeyEncipherment) {
		required = append(required, certificatesv1.UsageKeyEncipherment)
		slices.Sort(required)
	}

	if !slices.Equal(requested, required) {
		return newRefusal(ReasonUsages, "the usages are %q and must be %q", requested, required)
	}

	return nil
}

// checkSubject checks that the subject has an organization, a common name and nothing else.
func checkSubject(r *parsedRequest) *Refusal {
	if !slices.Equal(r.request.Subject.Organization, []string{nodesGroup}) {
		return newRefusal(ReasonOrganization,
			"the organizations are %q and must be only %q", r.request.Subject.Organization, nodesGroup)
	}

	if names := len(r.request.Subject.Names); names != 2 {
		return newRefusal(ReasonSubject, "the subject has %d parts and must have an organization and a common name", names)
	}

	return nil
}

// checkAlternativeNames checks the subject alternative names. The client certificate must have none. The
// serving certificate must have the node's name and must not have loopback, unspecified, multicast,
// link-local or broadcast addresses.
func checkAlternativeNames(r *parsedRequest) *Refusal {
	subjectAltName := asn1.ObjectIdentifier{2, 5, 29, 17}
	if i := slices.IndexFunc(r.request.Extensions, func(e pkix.Extension) bool { return !e.Id.Equal(subjectAltName) }); i >= 0 {
		return newRefusal(ReasonExtension, "the request has the extension %s, which is not allowed", r.request.Extensions[i].Id)
	}

	if len(r.request.EmailAddresses)+len(r.request.URIs) > 0 {
		return newRefusal(ReasonSubjectAlternativeNames, "the alternative names must not have e-mail addresses or URIs")
	}

	if !r.isServing {
		if len(r.request.Extensions) > 0 {
			return newRefusal(ReasonSubjectAlternativeNames, "a client certificate must not have alternative names")
		}

		return nil
	}

	if !slices.Contains(r.request.DNSNames, r.node) {
		return newRefusal(ReasonSubjectAlternativeNames, "the alternative names must have the node's name %q", r.node)
	}

	for _, ip := range r.request.IPAddresses {
		if ip.IsLoopback() || ip.IsUnspecified() || ip.IsMulticast() || ip.IsLinkLocalUnicast() || ip.Equal(net.IPv4bcast) {
			return newRefusal(ReasonSubjectAlternativeNames, "%s cannot be the address of a node", ip)
		}
	}

	return nil
}

// checkDPU checks that the node is a DPU of the bridge's DPUCluster and that the DPU is in a phase in
// which its worker needs the certificate.
func checkDPU(r *parsedRequest, facts Facts) *Refusal {
	if facts.DPU == nil {
		return newRefusal(ReasonDPUNotFound, "DPU %s/%s does not exist", facts.Namespace, r.node)
	}

	if facts.DPU.Namespace != facts.Namespace || facts.DPU.Cluster != facts.Cluster {
		return newRefusal(ReasonDPUOfAnotherCluster, "DPU %s joins DPUCluster %q and must join %q", r.node,
			facts.DPU.Namespace+"/"+facts.DPU.Cluster, facts.Namespace+"/"+facts.Cluster)
	}

	phases := []string{phaseClusterConfig}
	if r.isServing {
		phases = append(phases, phaseReady, phaseNodeEffectRemoval)
	}

	if !slices.Contains(phases, facts.DPU.Phase) {
		return newRefusal(ReasonDPUPhase, "DPU %s is in phase %q and must be in one of %q", r.node, facts.DPU.Phase, phases)
	}

	return nil
}

// checkAddresses checks that the node has all names and addresses of a serving certificate, and that no
// other node has one of them.
func checkAddresses(r *parsedRequest, facts Facts) *Refusal {
	if facts.Node == nil {
		return newRefusal(ReasonNodeNotFound, "node %s does not exist in the cluster yet", r.node)
	}

	requested := slices.Clone(r.request.DNSNames)
	for _, ip := range r.request.IPAddresses {
		requested = append(requested, ip.String())
	}

	for _, address := range requested {
		if address != r.node && !slices.Contains(NodeAddresses(facts.Node), address) {
			return newRefusal(ReasonAddressNotOfNode, "%s is not an address of node %s", address, r.node)
		}

		if other := facts.OtherNodeWithAddress(address); other != "" && other != r.node {
			return newRefusal(ReasonAddressOfAnotherNode, "%s is also an address of node %s", address, other)
		}
	}

	return nil
}

// NodeAddresses returns the addresses of a node without duplicates: names as they are, and IP addresses
// in their canonical form.
func NodeAddresses(node *corev1.Node) []string {
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

func isReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}
