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
)

// judged is a request that may be approved, until a test changes it, and what it is held against.
type judged struct {
	template x509.CertificateRequest
	object   certificatesv1.CertificateSigningRequest
	facts    csr.Facts
	// key signs the request, and sealed makes it of its DER.
	key    crypto.Signer
	sealed func(der []byte) []byte
}

// worker is the node that asks.
const worker = "dpu-1"

func joining() *judged {
	return &judged{
		template: x509.CertificateRequest{Subject: pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:" + worker}},
		object: certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Username:   "system:serviceaccount:openshift-machine-config-operator:node-bootstrapper",
			Groups:     []string{"system:serviceaccounts", "system:authenticated", "system:serviceaccounts:openshift-machine-config-operator"},
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		}},
		facts: csr.Facts{
			Namespace: "dpf", Cluster: "dpus", DPU: &csr.DPU{Namespace: "dpf", Cluster: "dpus", Phase: "DPU Cluster Config"},
			HasAddress: func(string) string { return "" },
		},
	}
}

func serving() *judged {
	a := joining()
	a.template.DNSNames, a.template.IPAddresses = []string{worker}, []net.IP{net.ParseIP("10.9.8.7"), net.ParseIP("2001:db8::7")}
	a.object.Spec.SignerName = certificatesv1.KubeletServingSignerName
	a.object.Spec.Username, a.object.Spec.Groups = "system:node:"+worker, []string{"system:nodes", "system:authenticated"}
	a.object.Spec.Usages = []certificatesv1.KeyUsage{certificatesv1.UsageServerAuth, certificatesv1.UsageDigitalSignature}
	a.facts.Node = nodeWith("10.9.8.7", "2001:0db8:0::0007", worker)

	return a
}

func nodeWith(addresses ...string) *corev1.Node {
	out := &corev1.Node{}
	for _, address := range addresses {
		out.Status.Addresses = append(out.Status.Addresses, corev1.NodeAddress{Address: address})
	}

	return out
}

func readyNode() *corev1.Node {
	out := nodeWith("10.9.8.7")
	out.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}

	return out
}

// One thing that is not as it should be is enough, whatever it is.
func TestOneThingIsEnoughToRefuse(t *testing.T) {
	t.Parallel()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)

	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)

	inPEM := func(der []byte) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	}

	for name, tc := range map[string]struct {
		of     func() *judged
		change func(a *judged)
		want   string
	}{
		"a client":           {joining, func(*judged) {}, ""},
		"a server":           {serving, func(*judged) {}, ""},
		"a node not ready":   {joining, func(a *judged) { a.facts.Node = nodeWith("10.9.8.7") }, ""},
		"serving when ready": {serving, func(a *judged) { a.facts.DPU.Phase = "Ready" }, ""},
		"serving when free":  {serving, func(a *judged) { a.facts.DPU.Phase = "Node Effect Removal" }, ""},
		"an RSA key": {joining, func(a *judged) {
			a.key, a.object.Spec.Usages = rsaKey, append(a.object.Spec.Usages, certificatesv1.UsageKeyEncipherment)
		}, ""},
		"its own address":      {serving, func(a *judged) { a.facts.HasAddress = func(string) string { return worker } }, ""},
		"a node that is ready": {joining, func(a *judged) { a.facts.Node = readyNode() }, csr.ReasonNodeReady},
		"no PEM":               {joining, func(a *judged) { a.sealed = func([]byte) []byte { return []byte("x") } }, csr.ReasonRequest},
		"a block of another kind": {joining, func(a *judged) {
			a.sealed = func(der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}) }
		}, csr.ReasonRequest},
		"signed by nobody": {joining, func(a *judged) {
			a.sealed = func(der []byte) []byte {
				der[len(der)-1] ^= 1

				return inPEM(der)
			}
		}, csr.ReasonRequest},
		"more than one block": {joining, func(a *judged) {
			a.sealed = func(der []byte) []byte { return append(inPEM(der), "and more"...) }
		}, csr.ReasonRequest},
		"asked by the node itself": {joining, func(a *judged) {
			a.object.Spec.Username, a.object.Spec.Groups = "system:node:"+worker, []string{"system:nodes", "system:authenticated"}
		}, csr.ReasonRequester},
		"another account":        {joining, func(a *judged) { a.object.Spec.Username += "2" }, csr.ReasonRequester},
		"a group more":           {serving, func(a *judged) { a.object.Spec.Groups = append(a.object.Spec.Groups, "system:masters") }, csr.ReasonRequester},
		"a usage more":           {joining, func(a *judged) { a.object.Spec.Usages = append(a.object.Spec.Usages, "any") }, csr.ReasonUsages},
		"a usage of RSA's alone": {joining, func(a *judged) { a.object.Spec.Usages = append(a.object.Spec.Usages, "key encipherment") }, csr.ReasonUsages},
		"serving as a client":    {serving, func(a *judged) { a.object.Spec.Usages = append(a.object.Spec.Usages, "client auth") }, csr.ReasonUsages},
		"an organisation more": {joining, func(a *judged) {
			a.template.Subject.Organization = append(a.template.Subject.Organization, "system:masters")
		}, csr.ReasonOrganization},
		"a country":      {joining, func(a *judged) { a.template.Subject.Country = []string{"DE"} }, csr.ReasonSubject},
		"another name":   {joining, func(a *judged) { a.template.Subject.CommonName = "admin" }, csr.ReasonCommonName},
		"no name at all": {joining, func(a *judged) { a.template.Subject.CommonName = "system:node:" }, csr.ReasonCommonName},
		"an extension": {joining, func(a *judged) {
			a.template.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Value: []byte{0x30, 3, 1, 1, 0xff}}}
		}, csr.ReasonExtension},
		"an e-mail address":    {serving, func(a *judged) { a.template.EmailAddresses = []string{"a@example.com"} }, csr.ReasonAlternatives},
		"loopback":             {serving, func(a *judged) { a.template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} }, csr.ReasonAlternatives},
		"a client's name":      {joining, func(a *judged) { a.template.DNSNames = []string{worker} }, csr.ReasonAlternatives},
		"no node's name":       {serving, func(a *judged) { a.template.DNSNames = nil }, csr.ReasonAlternatives},
		"link-local":           {serving, func(a *judged) { a.template.IPAddresses = []net.IP{net.ParseIP("fe80::1")} }, csr.ReasonAlternatives},
		"any address":          {serving, func(a *judged) { a.template.IPAddresses = []net.IP{net.IPv4zero} }, csr.ReasonAlternatives},
		"no DPU":               {joining, func(a *judged) { a.facts.DPU = nil }, csr.ReasonDPUNotFound},
		"another cluster":      {joining, func(a *judged) { a.facts.DPU.Cluster = "others" }, csr.ReasonDPUElsewhere},
		"another namespace":    {joining, func(a *judged) { a.facts.DPU.Namespace = "others" }, csr.ReasonDPUElsewhere},
		"joining when ready":   {joining, func(a *judged) { a.facts.DPU.Phase = "Ready" }, csr.ReasonDPUPhase},
		"a DPU in error":       {serving, func(a *judged) { a.facts.DPU.Phase = "Error" }, csr.ReasonDPUPhase},
		"no node":              {serving, func(a *judged) { a.facts.Node = nil }, csr.ReasonNodeNotFound},
		"an address of nobody": {serving, func(a *judged) { a.facts.Node = nodeWith("10.9.8.7") }, csr.ReasonAddressUnknown},
		"a name of nobody":     {serving, func(a *judged) { a.template.DNSNames = append(a.template.DNSNames, "api") }, csr.ReasonAddressUnknown},
		"another's address": {serving, func(a *judged) {
			a.facts.HasAddress = func(address string) string { return map[string]string{"2001:db8::7": "dpu-2"}[address] }
		}, csr.ReasonAddressTaken},
	} {
		a := tc.of()
		a.key, a.sealed = key, inPEM
		tc.change(a)

		der, err := x509.CreateCertificateRequest(rand.Reader, &a.template, a.key)
		must(t, err)

		a.object.Spec.Request = a.sealed(der)

		switch refusal := csr.Check(&a.object, a.facts); {
		case refusal == nil && tc.want != "", refusal != nil && refusal.Reason != tc.want:
			t.Errorf("%s: %+v, want %s", name, refusal, tc.want)
		case refusal != nil && refusal.Message == "":
			t.Errorf("%s: no message", name)
		}
	}
}
