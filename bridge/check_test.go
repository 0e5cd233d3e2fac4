// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"net"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/hyperfleet/hyperfleet/bridge/csr"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// testRequest is a request that passes all checks until a test changes it, and the facts that it is
// checked against.
type testRequest struct {
	template x509.CertificateRequest
	object   certificatesv1.CertificateSigningRequest
	facts    csr.Facts
	// key signs the request, and encodePEM encodes its DER.
	key       crypto.Signer
	encodePEM func(der []byte) []byte
}

// worker is the name of the requesting node.
const worker = "dpu-1"

func newClientRequest() *testRequest {
	return &testRequest{
		template: x509.CertificateRequest{Subject: pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:" + worker}},
		object: certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Username:   "system:serviceaccount:openshift-machine-config-operator:node-bootstrapper",
			Groups:     []string{"system:serviceaccounts", "system:authenticated", "system:serviceaccounts:openshift-machine-config-operator"},
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		}},
		facts: csr.Facts{
			Namespace: "dpf", Cluster: "dpus", DPU: &csr.DPU{Namespace: "dpf", Cluster: "dpus", Phase: "DPU Cluster Config"},
			OtherNodeWithAddress: func(string) string { return "" },
		},
	}
}

func newServingRequest() *testRequest {
	a := newClientRequest()
	a.template.DNSNames, a.template.IPAddresses = []string{worker}, []net.IP{net.ParseIP("10.9.8.7"), net.ParseIP("2001:db8::7")}
	a.object.Spec.SignerName = certificatesv1.KubeletServingSignerName
	a.object.Spec.Username, a.object.Spec.Groups = "system:node:"+worker, []string{"system:nodes", "system:authenticated"}
	a.object.Spec.Usages = []certificatesv1.KeyUsage{certificatesv1.UsageServerAuth, certificatesv1.UsageDigitalSignature}
	a.facts.Node = newNode("10.9.8.7", "2001:0db8:0::0007", worker)

	return a
}

func newNode(addresses ...string) *corev1.Node {
	out := &corev1.Node{}
	for _, address := range addresses {
		out.Status.Addresses = append(out.Status.Addresses, corev1.NodeAddress{Address: address})
	}

	return out
}

func newReadyNode() *corev1.Node {
	out := newNode("10.9.8.7")
	out.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}

	return out
}

// TestEachCheckRejectsRequest checks that a single deviation is enough to refuse a request.
func TestEachCheckRejectsRequest(t *testing.T) {
	t.Parallel()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.Do(t, err)

	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	must.Do(t, err)

	inPEM := func(der []byte) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	}

	for name, tc := range map[string]struct {
		of     func() *testRequest
		change func(a *testRequest)
		want   string
	}{
		"a client":           {newClientRequest, func(*testRequest) {}, ""},
		"a server":           {newServingRequest, func(*testRequest) {}, ""},
		"a node not ready":   {newClientRequest, func(a *testRequest) { a.facts.Node = newNode("10.9.8.7") }, ""},
		"serving when ready": {newServingRequest, func(a *testRequest) { a.facts.DPU.Phase = "Ready" }, ""},
		"serving when free":  {newServingRequest, func(a *testRequest) { a.facts.DPU.Phase = "Node Effect Removal" }, ""},
		"an RSA key": {newClientRequest, func(a *testRequest) {
			a.key, a.object.Spec.Usages = rsaKey, append(a.object.Spec.Usages, certificatesv1.UsageKeyEncipherment)
		}, ""},
		"its own address":      {newServingRequest, func(a *testRequest) { a.facts.OtherNodeWithAddress = func(string) string { return worker } }, ""},
		"a node that is ready": {newClientRequest, func(a *testRequest) { a.facts.Node = newReadyNode() }, csr.ReasonNodeAlreadyReady},
		"no PEM":               {newClientRequest, func(a *testRequest) { a.encodePEM = func([]byte) []byte { return []byte("x") } }, csr.ReasonRequest},
		"a block of another kind": {newClientRequest, func(a *testRequest) {
			a.encodePEM = func(der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}) }
		}, csr.ReasonRequest},
		"without a signer": {newClientRequest, func(a *testRequest) {
			a.encodePEM = func(der []byte) []byte {
				der[len(der)-1] ^= 1

				return inPEM(der)
			}
		}, csr.ReasonRequest},
		"more than one block": {newClientRequest, func(a *testRequest) {
			a.encodePEM = func(der []byte) []byte { return append(inPEM(der), "and more"...) }
		}, csr.ReasonRequest},
		"requested by the node itself": {newClientRequest, func(a *testRequest) {
			a.object.Spec.Username, a.object.Spec.Groups = "system:node:"+worker, []string{"system:nodes", "system:authenticated"}
		}, csr.ReasonRequester},
		"another account":        {newClientRequest, func(a *testRequest) { a.object.Spec.Username += "2" }, csr.ReasonRequester},
		"a group more":           {newServingRequest, func(a *testRequest) { a.object.Spec.Groups = append(a.object.Spec.Groups, "system:masters") }, csr.ReasonRequester},
		"a usage more":           {newClientRequest, func(a *testRequest) { a.object.Spec.Usages = append(a.object.Spec.Usages, "any") }, csr.ReasonUsages},
		"a usage of RSA's alone": {newClientRequest, func(a *testRequest) { a.object.Spec.Usages = append(a.object.Spec.Usages, "key encipherment") }, csr.ReasonUsages},
		"serving as a client":    {newServingRequest, func(a *testRequest) { a.object.Spec.Usages = append(a.object.Spec.Usages, "client auth") }, csr.ReasonUsages},
		"an organisation more": {newClientRequest, func(a *testRequest) {
			a.template.Subject.Organization = append(a.template.Subject.Organization, "system:masters")
		}, csr.ReasonOrganization},
		"a country":      {newClientRequest, func(a *testRequest) { a.template.Subject.Country = []string{"DE"} }, csr.ReasonSubject},
		"another name":   {newClientRequest, func(a *testRequest) { a.template.Subject.CommonName = "admin" }, csr.ReasonCommonName},
		"no name at all": {newClientRequest, func(a *testRequest) { a.template.Subject.CommonName = "system:node:" }, csr.ReasonCommonName},
		"an extension": {newClientRequest, func(a *testRequest) {
			a.template.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Value: []byte{0x30, 3, 1, 1, 0xff}}}
		}, csr.ReasonExtension},
		"an e-mail address":  {newServingRequest, func(a *testRequest) { a.template.EmailAddresses = []string{"a@example.com"} }, csr.ReasonSubjectAlternativeNames},
		"loopback":           {newServingRequest, func(a *testRequest) { a.template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} }, csr.ReasonSubjectAlternativeNames},
		"a client's name":    {newClientRequest, func(a *testRequest) { a.template.DNSNames = []string{worker} }, csr.ReasonSubjectAlternativeNames},
		"no node's name":     {newServingRequest, func(a *testRequest) { a.template.DNSNames = nil }, csr.ReasonSubjectAlternativeNames},
		"link-local":         {newServingRequest, func(a *testRequest) { a.template.IPAddresses = []net.IP{net.ParseIP("fe80::1")} }, csr.ReasonSubjectAlternativeNames},
		"any address":        {newServingRequest, func(a *testRequest) { a.template.IPAddresses = []net.IP{net.IPv4zero} }, csr.ReasonSubjectAlternativeNames},
		"no DPU":             {newClientRequest, func(a *testRequest) { a.facts.DPU = nil }, csr.ReasonDPUNotFound},
		"another cluster":    {newClientRequest, func(a *testRequest) { a.facts.DPU.Cluster = "others" }, csr.ReasonDPUOfAnotherCluster},
		"another namespace":  {newClientRequest, func(a *testRequest) { a.facts.DPU.Namespace = "others" }, csr.ReasonDPUOfAnotherCluster},
		"joining when ready": {newClientRequest, func(a *testRequest) { a.facts.DPU.Phase = "Ready" }, csr.ReasonDPUPhase},
		"a DPU in error":     {newServingRequest, func(a *testRequest) { a.facts.DPU.Phase = "Error" }, csr.ReasonDPUPhase},
		"no node":            {newServingRequest, func(a *testRequest) { a.facts.Node = nil }, csr.ReasonNodeNotFound},
		"an unknown address": {newServingRequest, func(a *testRequest) { a.facts.Node = newNode("10.9.8.7") }, csr.ReasonAddressNotOfNode},
		"an unknown name":    {newServingRequest, func(a *testRequest) { a.template.DNSNames = append(a.template.DNSNames, "api") }, csr.ReasonAddressNotOfNode},
		"another's address": {newServingRequest, func(a *testRequest) {
			a.facts.OtherNodeWithAddress = func(address string) string { return map[string]string{"2001:db8::7": "dpu-2"}[address] }
		}, csr.ReasonAddressOfAnotherNode},
	} {
		a := tc.of()
		a.key, a.encodePEM = key, inPEM
		tc.change(a)

		der, err := x509.CreateCertificateRequest(rand.Reader, &a.template, a.key)
		must.Do(t, err)

		a.object.Spec.Request = a.encodePEM(der)

		switch refusal := csr.Check(&a.object, a.facts); {
		case refusal == nil && tc.want != "", refusal != nil && refusal.Reason != tc.want:
			t.Errorf("%s: %+v, want %s", name, refusal, tc.want)
		case refusal != nil && refusal.Message == "":
			t.Errorf("%s: no message", name)
		}
	}
}
