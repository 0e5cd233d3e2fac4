// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package csr_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/hyperfleet/hyperfleet/bridge/csr"
)

// asked is a request that may be approved, until a test changes it, and what it is held against.
type asked struct {
	template x509.CertificateRequest
	object   certificatesv1.CertificateSigningRequest
	facts    csr.Facts
	// sealed changes the request in PEM.
	sealed func([]byte) []byte
}

const node = "dpu-1"

func clientOf() *asked {
	return &asked{
		template: x509.CertificateRequest{Subject: pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:" + node}},
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

func servingOf() *asked {
	a := clientOf()
	a.template.DNSNames, a.template.IPAddresses = []string{node}, []net.IP{net.ParseIP("10.9.8.7"), net.ParseIP("2001:db8::7")}
	a.object.Spec.SignerName = certificatesv1.KubeletServingSignerName
	a.object.Spec.Username, a.object.Spec.Groups = "system:node:"+node, []string{"system:nodes", "system:authenticated"}
	a.object.Spec.Usages = []certificatesv1.KeyUsage{certificatesv1.UsageServerAuth, certificatesv1.UsageDigitalSignature}
	a.facts.Node = nodeWith("10.9.8.7", "2001:0db8:0::0007", node)

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
	if err != nil {
		t.Fatal(err)
	}

	for name, tc := range map[string]struct {
		of     func() *asked
		change func(a *asked)
		want   string
	}{
		"a client":             {clientOf, func(*asked) {}, ""},
		"a server":             {servingOf, func(*asked) {}, ""},
		"a node not ready":     {clientOf, func(a *asked) { a.facts.Node = nodeWith("10.9.8.7") }, ""},
		"serving when ready":   {servingOf, func(a *asked) { a.facts.DPU.Phase = "Ready" }, ""},
		"its own address":      {servingOf, func(a *asked) { a.facts.HasAddress = func(string) string { return node } }, ""},
		"a node that is ready": {clientOf, func(a *asked) { a.facts.Node = readyNode() }, csr.ReasonNodeReady},
		"no PEM":               {clientOf, func(a *asked) { a.sealed = func([]byte) []byte { return []byte("x") } }, csr.ReasonRequest},
		"a block of another kind": {clientOf, func(a *asked) {
			a.sealed = func(der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}) }
		}, csr.ReasonRequest},
		"signed by nobody": {clientOf, func(a *asked) {
			a.sealed = func(der []byte) []byte {
				der[len(der)-1] ^= 1

				return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
			}
		}, csr.ReasonRequest},
		"another account":        {clientOf, func(a *asked) { a.object.Spec.Username += "2" }, csr.ReasonRequester},
		"a group more":           {servingOf, func(a *asked) { a.object.Spec.Groups = append(a.object.Spec.Groups, "system:masters") }, csr.ReasonRequester},
		"a usage more":           {clientOf, func(a *asked) { a.object.Spec.Usages = append(a.object.Spec.Usages, "any") }, csr.ReasonUsages},
		"a usage of RSA's alone": {clientOf, func(a *asked) { a.object.Spec.Usages = append(a.object.Spec.Usages, "key encipherment") }, csr.ReasonUsages},
		"an organisation more": {clientOf, func(a *asked) {
			a.template.Subject.Organization = append(a.template.Subject.Organization, "system:masters")
		}, csr.ReasonOrganization},
		"a country":         {clientOf, func(a *asked) { a.template.Subject.Country = []string{"DE"} }, csr.ReasonSubject},
		"another name":      {clientOf, func(a *asked) { a.template.Subject.CommonName = "admin" }, csr.ReasonCommonName},
		"a client's name":   {clientOf, func(a *asked) { a.template.DNSNames = []string{node} }, csr.ReasonAlternatives},
		"no node's name":    {servingOf, func(a *asked) { a.template.DNSNames = nil }, csr.ReasonAlternatives},
		"link-local":        {servingOf, func(a *asked) { a.template.IPAddresses = []net.IP{net.ParseIP("fe80::1")} }, csr.ReasonAlternatives},
		"any address":       {servingOf, func(a *asked) { a.template.IPAddresses = []net.IP{net.IPv4zero} }, csr.ReasonAlternatives},
		"no DPU":            {clientOf, func(a *asked) { a.facts.DPU = nil }, csr.ReasonDPUNotFound},
		"another cluster":   {clientOf, func(a *asked) { a.facts.DPU.Cluster = "others" }, csr.ReasonDPUElsewhere},
		"another namespace": {clientOf, func(a *asked) { a.facts.DPU.Namespace = "others" }, csr.ReasonDPUElsewhere},
		"joining when ready": {clientOf, func(a *asked) { a.facts.DPU.Phase = "Ready" },
			csr.ReasonDPUPhase},
		"no node":              {servingOf, func(a *asked) { a.facts.Node = nil }, csr.ReasonNodeNotFound},
		"an address of nobody": {servingOf, func(a *asked) { a.facts.Node = nodeWith("10.9.8.7") }, csr.ReasonAddressUnknown},
		"a name of nobody":     {servingOf, func(a *asked) { a.template.DNSNames = append(a.template.DNSNames, "api") }, csr.ReasonAddressUnknown},
		"another's address": {servingOf, func(a *asked) {
			a.facts.HasAddress = func(address string) string { return map[string]string{"2001:db8::7": "dpu-2"}[address] }
		}, csr.ReasonAddressTaken},
	} {
		a := tc.of()
		tc.change(a)

		der, err := x509.CreateCertificateRequest(rand.Reader, &a.template, key)
		if err != nil {
			t.Fatal(err)
		}

		a.object.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
		if a.sealed != nil {
			a.object.Spec.Request = a.sealed(der)
		}

		switch refusal := csr.Check(&a.object, a.facts); {
		case refusal == nil && tc.want != "", refusal != nil && refusal.Reason != tc.want:
			t.Errorf("%s: %+v, want %s", name, refusal, tc.want)
		case refusal != nil && refusal.Message == "":
			t.Errorf("%s: no message", name)
		}
	}
}
