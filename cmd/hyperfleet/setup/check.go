// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package setup

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/operator"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/libvirt"
	"github.com/hyperfleet/hyperfleet/hypervisor/proxmox"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
)

// manifests are the objects that are parsed from the rendered manifests. The checks use them, so that the
// checked objects are exactly the objects that the user applies.
type manifests struct {
	cluster  v1alpha1.HypervisorCluster
	template v1alpha1.HypervisorMachineTemplate
	pool     v1alpha1.RunnerPool
	secrets  secretReader
}

// renderObjects renders the manifests and parses their objects.
func (a *answers) renderObjects() (*manifests, error) {
	out := &manifests{secrets: secretReader{}}

	for _, name := range []string{fleetFile, secretsFile} {
		text, err := a.render(name)
		if err != nil {
			return nil, err
		}

		for part := range strings.SplitSeq(text, "\n---\n") {
			if err := out.add([]byte(part)); err != nil {
				return nil, fmt.Errorf("parse rendered %s: %w", name, err)
			}
		}
	}

	return out, nil
}

// add parses one object and keeps it. It ignores kinds that the checks do not need. A field that the kind
// does not have is an error.
func (m *manifests) add(text []byte) error {
	var object map[string]any
	if err := yaml.Unmarshal(text, &object); err != nil {
		return err
	}

	secret := &corev1.Secret{}
	kind, _ := object["kind"].(string)
	target := map[string]any{
		"HypervisorCluster": &m.cluster, "HypervisorMachineTemplate": &m.template, "RunnerPool": &m.pool, "Secret": secret,
	}[kind]

	if target == nil {
		return nil
	}

	// The conversion is as strict as the API server, which distinguishes upper and lower case in field names.
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object, target, true); err != nil {
		return err
	}

	if kind == "Secret" {
		secret.Data = map[string][]byte{}
		for key, value := range secret.StringData {
			secret.Data[key] = []byte(value)
		}

		m.secrets[client.ObjectKeyFromObject(secret)] = secret
	}

	return nil
}

// secretReader is a client.Reader for Secrets that are not applied to an API server yet.
type secretReader map[client.ObjectKey]*corev1.Secret

// Get returns a Secret or its metadata. It returns a NotFound error if there is no such Secret.
func (r secretReader) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	secret := r[key]
	if secret == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, key.String())
	}

	switch into := into.(type) {
	case *corev1.Secret:
		secret.DeepCopyInto(into)
	case *metav1.PartialObjectMetadata:
		secret.ObjectMeta.DeepCopyInto(&into.ObjectMeta)
	default:
		return fmt.Errorf("get Secret %s: unexpected type %T", key, into)
	}

	return nil
}

// List always returns an error, because the checks read Secrets by name only.
func (r secretReader) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("list Secrets: not supported, get them by name")
}

// checkHypervisor connects to the hypervisor and looks up the template in the same way as the operator. It
// returns a description of what it found, with warnings.
func (a *answers) checkHypervisor(ctx context.Context) (string, error) {
	objects, err := a.renderObjects()
	if err != nil {
		return "", err
	}

	clusters := &connect.Clusters{
		Secrets:   &connect.Secrets{Reader: objects.secrets, OperatorNamespace: a.OperatorNamespace},
		Factories: map[string]hypervisor.Factory{v1alpha1.ProviderProxmox: proxmox.New, v1alpha1.ProviderLibvirt: libvirt.New},
		Options:   hypervisor.Options{OperatorUID: "hyperfleet-init", Wake: func(hypervisor.Owner) {}},
	}
	defer clusters.Close()

	provider, err := clusters.Ensure(ctx, &objects.cluster)
	if err != nil {
		return "", err
	}

	info, err := provider.Check(ctx)
	if err != nil {
		return "", err
	}

	templateNodes, err := provider.Resolve(ctx, vmspec.NewTemplateRef(&objects.template), vmspec.NewShape(&objects.template))
	if err != nil {
		return "", err
	}

	for _, node := range templateNodes {
		if node.OS != "" && a.OS != "" && node.OS != a.OS {
			return "", fmt.Errorf("the hypervisor records the operating system %s for template %s: use --os %s, or correct what the "+
				"hypervisor records", node.OS, a.Template, node.OS)
		}

		a.OS = cmp.Or(a.OS, node.OS)
	}

	result := fmt.Sprintf("connected to %s %s with %s; template %s is available on %d of them",
		info.Product, info.Version, english.Plural(len(info.Nodes), "node", ""), a.Template, len(templateNodes))

	return strings.Join(append([]string{result}, info.Warnings...), "\n  "), nil
}

// checkPlatform validates the credentials of the CI platform in the same way as the operator.
func (a *answers) checkPlatform(ctx context.Context) error {
	objects, err := a.renderObjects()
	if err != nil {
		return err
	}

	var allowedURLs []string
	if a.GitHubURL != "" {
		allowedURLs = []string{a.GitHubURL} // the user chose this server, so any address is allowed
	}

	egress, err := bounds.NewEgressPolicy(allowedURLs, nil)
	if err != nil {
		return err
	}

	platforms := &connect.Workloads{
		Secrets:   &connect.Secrets{Reader: objects.secrets, OperatorNamespace: a.OperatorNamespace, Egress: egress},
		Platforms: operator.Platforms(),
	}

	provider, err := platforms.ProviderFor(ctx, &objects.template, objects.pool.Spec.Workload)
	if err != nil {
		return err
	}

	return provider.Validate(ctx)
}

// probeCertificate connects to a server and reports whether this machine trusts its certificate. If not, it
// returns the SHA-256 fingerprint of the certificate. It sends no data over the connection.
func probeCertificate(ctx context.Context, endpoint string) (fingerprint string, isTrusted bool, err error) {
	server, err := url.Parse(endpoint)
	if err != nil {
		return "", false, fmt.Errorf("parse endpoint: %w", err)
	}

	address := server.Host
	if server.Port() == "" {
		address = net.JoinHostPort(server.Hostname(), "443")
	}

	const verify, doNotVerify = false, true

	dial := func(isUnverified bool) (net.Conn, error) {
		dialer := &tls.Dialer{Config: &tls.Config{
			// The connection serves only to read the certificate, and no data is sent over it.
			InsecureSkipVerify: isUnverified, //nolint:gosec // as above
			MinVersion:         tls.VersionTLS12, ServerName: server.Hostname(),
		}}

		return dialer.DialContext(ctx, "tcp", address)
	}

	if conn, err := dial(verify); err == nil {
		return "", true, conn.Close()
	}

	conn, err := dial(doNotVerify)
	if err != nil {
		return "", false, fmt.Errorf("connect to %s: %w", address, err)
	}
	defer conn.Close() //nolint:errcheck // no data was sent

	tlsConn, ok := conn.(*tls.Conn)
	if !ok || len(tlsConn.ConnectionState().PeerCertificates) == 0 {
		return "", false, fmt.Errorf("connect to %s: the server presents no certificate", address)
	}

	return hypervisor.FormatFingerprint(sha256.Sum256(tlsConn.ConnectionState().PeerCertificates[0].Raw)), false, nil
}

// normalizeEndpoint returns the URL of the Proxmox VE API for a host, a host with a port, or a URL. The
// default port is 8006, and the default path is /api2/json.
func normalizeEndpoint(text string) (string, error) {
	if address, err := netip.ParseAddr(text); err == nil && address.Is6() {
		text = "[" + text + "]"
	}

	if !strings.Contains(text, "://") {
		text = "https://" + text
	}

	parsed, err := url.Parse(strings.TrimRight(text, "/"))
	if err != nil || parsed.Hostname() == "" || parsed.Scheme != "https" {
		return "", errors.New("the endpoint must be a host, or an https URL such as https://pve.example.com:8006")
	}

	if parsed.Port() == "" {
		parsed.Host = net.JoinHostPort(parsed.Hostname(), "8006")
	}

	// A browser shows the web interface at the path /, with a fragment.
	if strings.Trim(parsed.Path, "/") == "" {
		parsed.Path = "/api2/json"
	}

	parsed.RawQuery, parsed.Fragment = "", ""

	return parsed.String(), nil
}
