// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package nodecert

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/log"
)

const (
	// userPrefix and nodeGroup make the API server identify the certificate's holder as a Node.
	userPrefix = "system:node:"
	nodeGroup  = "system:nodes"

	// maxCertificateSize limits the size of a certificate that another cluster returns.
	maxCertificateSize = 64 << 10
	// signTimeout is how long a cluster may take to sign a request.
	signTimeout = 2 * time.Minute
)

// Reasons of the errors of Advance that a person has to fix.
const (
	ReasonForbidden = "NodeCredentialForbidden"
	ReasonRefused   = "NodeCredentialRefused"
	ReasonNotSigned = "NodeCredentialNotSigned"
)

// Credential is a credential that was issued for a host.
type Credential struct {
	Kubeconfig log.Secret
	// NotBefore and NotAfter limit its validity.
	NotBefore, NotAfter time.Time
	// Cluster is the digest of the cluster in it (credential.DigestOfCluster).
	Cluster string
}

// PendingCredential is a credential that is being issued.
type PendingCredential struct {
	// Credential is the result. It is nil until the cluster has signed the request.
	Credential *Credential

	node string
	// name of the CertificateSigningRequest.
	name string
	// key is the private key, and request the certificate request, both in PEM.
	key, request []byte
	requestedAt  time.Time
}

// New creates the private key and the certificate request of a Node's credential.
func New(node string, now time.Time) (*PendingCredential, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate key of node %s: %w", node, err)
	}

	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key of node %s: %w", node, err)
	}

	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: userPrefix + node, Organization: []string{nodeGroup}},
	}, key)
	if err != nil {
		return nil, fmt.Errorf("create certificate request of node %s: %w", node, err)
	}

	const suffixBytes = 5

	sum := sha256.Sum256(request)

	return &PendingCredential{
		node: node, name: "hyperfleet-" + node + "-" + hex.EncodeToString(sum[:suffixBytes]), requestedAt: now,
		key:     pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
		request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request}),
	}, nil
}

// Advance does the next step of issuing a credential in the cluster of the kubeconfig: it creates a
// CertificateSigningRequest, approves it, or reads the signed certificate. If it returns no error and
// Credential is still nil, call Advance again after one or two seconds. Errors that a person has to fix
// are of class Configuration.
func (p *PendingCredential) Advance(ctx context.Context, kubeconfig []byte, lifetime time.Duration, now time.Time) error {
	if p.Credential != nil {
		return nil
	}

	cluster, closeClient, err := credential.Connect(kubeconfig, credential.Kinds{
		AddToScheme: []func(*runtime.Scheme) error{certificatesv1.AddToScheme},
		Scopes: map[schema.GroupVersionKind]meta.RESTScope{
			certificatesv1.SchemeGroupVersion.WithKind("CertificateSigningRequest"): meta.RESTScopeRoot,
		},
	})
	if err != nil {
		return fmt.Errorf("connect to the cluster of the Node: %w", err)
	}
	defer closeClient()

	csr, err := p.ensureRequest(ctx, cluster, lifetime)
	if err != nil {
		return err
	}

	if len(csr.Status.Certificate) > 0 {
		return p.acceptCertificate(kubeconfig, csr.Status.Certificate)
	}

	if err := checkRefused(csr); err != nil {
		return err
	}

	if now.Sub(p.requestedAt) > signTimeout {
		return errclass.New(errclass.Configuration, ReasonNotSigned,
			"certificate signing request %s was not signed in time: the cluster must have a signer for %s", p.name,
			certificatesv1.KubeAPIServerClientKubeletSignerName)
	}

	return p.approve(ctx, cluster, csr)
}

// ensureRequest creates the certificate signing request, or reads it if it exists.
func (p *PendingCredential) ensureRequest(
	ctx context.Context, cluster client.Client, lifetime time.Duration,
) (*certificatesv1.CertificateSigningRequest, error) {
	csr := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: p.name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: p.request, SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			ExpirationSeconds: new(int32(lifetime / time.Second)), //nolint:gosec // G115: the schema bounds it
			Usages:            []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}

	err := cluster.Create(ctx, csr)
	if apierrors.IsAlreadyExists(err) {
		err = cluster.Get(ctx, client.ObjectKeyFromObject(csr), csr)
	}

	if err != nil {
		return nil, p.callError("create certificate signing request", err)
	}

	return csr, nil
}

// callError wraps the error of a call. If the call was forbidden, the error names the fix.
func (p *PendingCredential) callError(operation string, err error) error {
	if apierrors.IsForbidden(err) {
		return errclass.New(errclass.Configuration, ReasonForbidden, "%s %s: forbidden: give the kubeconfig's user the RBAC "+
			"permissions that the hosts guide lists", operation, p.name)
	}

	return fmt.Errorf("%s %s: %w", operation, p.name, credential.RedactError(err))
}

// checkRefused returns an error if the certificate signing request was denied or its signing failed.
func checkRefused(csr *certificatesv1.CertificateSigningRequest) error {
	for _, c := range csr.Status.Conditions {
		if c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed {
			return errclass.New(errclass.Configuration, ReasonRefused,
				"certificate signing request %s was denied or failed (%s): %s", csr.Name, c.Reason, c.Message)
		}
	}

	return nil
}

// approve approves the certificate signing request, so that the signer signs it.
func (p *PendingCredential) approve(
	ctx context.Context, cluster client.Client, csr *certificatesv1.CertificateSigningRequest,
) error {
	for _, c := range csr.Status.Conditions {
		if c.Type == certificatesv1.CertificateApproved {
			return nil
		}
	}

	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue,
		Reason: "HyperFleetHost", Message: "requested by HyperFleet for host " + p.node,
	})

	// If another client changed the request, the next call sees the change.
	if err := cluster.SubResource("approval").Update(ctx, csr); err != nil && !apierrors.IsConflict(err) {
		return p.callError("approve certificate signing request", err)
	}

	return nil
}

// acceptCertificate stores the credential: the given kubeconfig with the certificate as its client
// certificate. The certificate must be for the pending key and Node.
func (p *PendingCredential) acceptCertificate(kubeconfig, certificate []byte) error {
	if len(certificate) > maxCertificateSize {
		return fmt.Errorf("read certificate of %s: its size of %d bytes exceeds the limit of %d",
			p.name, len(certificate), maxCertificateSize)
	}

	leaf, err := p.parseLeaf(certificate)
	if err != nil {
		return fmt.Errorf("read certificate of %s: %w", p.name, err)
	}

	text, err := credential.NewKubeconfig(kubeconfig, certificate, p.key)
	if err != nil {
		return err
	}

	cluster, err := credential.DigestOfCluster(kubeconfig)
	if err != nil {
		return err
	}

	p.Credential = &Credential{
		Kubeconfig: log.NewSecret(string(text)), NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter, Cluster: cluster,
	}

	return nil
}

var errMismatch = errors.New("the certificate is for another key or another name than requested")

// parseLeaf parses a certificate. It returns errMismatch if the certificate has another key or another
// common name than the request.
func (p *PendingCredential) parseLeaf(certificate []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(certificate)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("it is not a PEM certificate")
	}

	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, errors.New("the certificate can't be parsed")
	}

	requestBlock, _ := pem.Decode(p.request)

	request, err := x509.ParseCertificateRequest(requestBlock.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parse certificate request: %w", err)
	}

	key, ok := request.PublicKey.(*ecdsa.PublicKey)
	if !ok || !key.Equal(leaf.PublicKey) || leaf.Subject.CommonName != userPrefix+p.node {
		return nil, errMismatch
	}

	return leaf, nil
}
