// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Names of HyperShift's (hypershift-operator/controllers/nodepool, token.go and
// nodepool_controller.go).
const (
	annotationConfig   = "hypershift.openshift.io/nodePoolCurrentConfigVersion"
	annotationNodePool = "hypershift.openshift.io/nodePool"
)

// serveIgnition starts the server of all control planes' ignition (ignition-server/cmd,
// start.go).
func (s *Sim) serveIgnition() {
	s.ignitions = map[string]ignition{}
	s.server = httptest.NewTLSServer(http.HandlerFunc(s.answerIgnition))
}

// ignition is what is served for a token, of which NodePool.
type ignition struct{ pool, token, image string }

func (s *Sim) answerIgnition(w http.ResponseWriter, r *http.Request) {
	encoded, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	token, err := base64.StdEncoding.DecodeString(encoded)

	switch {
	case !strings.HasPrefix(r.URL.Path, "/ignition") || strings.Contains(r.URL.Path[1:], "/"):
		http.NotFound(w, r)

		return
	case !bearer || err != nil:
		http.Error(w, "Unauthorized", http.StatusUnauthorized)

		return
	}

	s.mu.Lock()
	served, known := s.ignitions[r.Header.Get("Nodepool")]
	s.fetched++
	s.mu.Unlock()

	if !known || served.token != string(token) {
		http.Error(w, "Token not found", http.StatusNetworkAuthenticationRequired)

		return
	}

	text, err := s.workerIgnition(served)
	if err != nil {
		http.Error(w, "Invalid ignition payload", http.StatusInternalServerError)

		return
	}

	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_, _ = w.Write(text)
}

// IgnitionsServed is how often HyperShift was asked for ignition.
func (s *Sim) IgnitionsServed() int {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.fetched
}

// workerIgnition is what a worker gets: the kubeconfig that it joins with, the machine
// configuration with the image of its system, and whose keys may log in.
func (s *Sim) workerIgnition(served ignition) ([]byte, error) {
	namespace, name, _ := strings.Cut(served.pool, "/")

	kubeconfig, err := s.options.Kubeconfig(namespace, name)
	if err != nil {
		return nil, fmt.Errorf("make kubeconfig: %w", err)
	}

	machine, err := json.Marshal(map[string]any{
		"kind": "MachineConfig",
		"spec": map[string]any{"osImageURL": "quay.io/machine-os-of/" + served.image, "kernelArguments": []string{"a+b"}},
	})
	if err != nil {
		return nil, fmt.Errorf("write ignition: %w", err)
	}

	file := func(path, source string) map[string]any {
		return map[string]any{"path": path, "mode": 420, "overwrite": true, "contents": map[string]any{"source": source}}
	}

	text, err := json.Marshal(map[string]any{
		"ignition": map[string]any{"version": "3.2.0"},
		"passwd":   map[string]any{"users": []any{map[string]any{"name": "core", "sshAuthorizedKeys": []string{"ssh-ed25519 AAAA"}}}},
		"storage": map[string]any{"files": []any{
			file("/etc/ignition-machine-config-encapsulated.json", "data:,"+url.PathEscape(string(machine))),
			file("/etc/kubernetes/kubeconfig", "data:text/plain;charset=utf-8;base64,"+base64.StdEncoding.EncodeToString(kubeconfig)),
		}},
		"systemd": map[string]any{"units": []any{map[string]any{"name": "kubelet.service", "enabled": true}}},
	})
	if err != nil {
		return nil, fmt.Errorf("write ignition: %w", err)
	}

	return text, nil
}

// userData makes the NodePool's user data, as HyperShift does of pools whose machines are not
// its own: in the control plane's namespace, under the digest of the configuration, which the
// NodePool is annotated with. What was there for another configuration is deleted.
func (p *pool) userData(ctx context.Context, cluster *unstructured.Unstructured) error {
	image, _, _ := unstructured.NestedString(p.object.Object, "spec", "release", "image")
	kubeconfig, _, _ := unstructured.NestedString(cluster.Object, "status", "kubeconfig", "name")

	if p.server == nil || kubeconfig == "" {
		return nil
	}

	sum := sha256.Sum256([]byte(image))
	version := hex.EncodeToString(sum[:4])
	namespace := ControlPlaneNamespace(cluster.GetNamespace(), cluster.GetName())

	if old := p.object.GetAnnotations()[annotationConfig]; old != version {
		if old != "" {
			gone := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "user-data-" + p.key.Name + "-" + old}}
			if err := client.IgnoreNotFound(p.client.Delete(ctx, gone)); err != nil {
				return fmt.Errorf("delete user data: %w", err)
			}
		}

		before := p.object.DeepCopy()
		annotations := p.object.GetAnnotations()

		if annotations == nil {
			annotations = map[string]string{}
		}

		annotations[annotationConfig] = version
		p.object.SetAnnotations(annotations)

		if err := p.client.Patch(ctx, p.object, client.MergeFrom(before)); err != nil {
			return fmt.Errorf("annotate NodePool: %w", err)
		}
	}

	return p.writeUserData(ctx, namespace, version, image)
}

// token of a NodePool's ignition: another one after each rotation.
func (p *pool) token(version string) string {
	p.mu.Lock()
	defer p.mu.Unlock()

	return fmt.Sprintf("token-%s-%s-%d", p.key.Name, version, p.rotations)
}

func (p *pool) writeUserData(ctx context.Context, namespace, version, image string) error {
	token := p.token(version)

	value, err := json.Marshal(map[string]any{"ignition": map[string]any{
		"version": "3.2.0",
		"security": map[string]any{"tls": map[string]any{"certificateAuthorities": []any{map[string]any{
			"source": "data:text/plain;base64," + base64.StdEncoding.EncodeToString(pem.EncodeToMemory(
				&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw})),
		}}}},
		"config": map[string]any{"merge": []any{map[string]any{
			"source": p.server.URL + "/ignition",
			"httpHeaders": []any{
				map[string]any{"name": "Authorization", "value": "Bearer " + base64.StdEncoding.EncodeToString([]byte(token))},
				map[string]any{"name": "NodePool", "value": p.key.NamespacedName.String()},
				map[string]any{"name": "TargetConfigVersionHash", "value": version},
			},
		}}},
	}})
	if err != nil {
		return fmt.Errorf("write user data: %w", err)
	}

	p.mu.Lock()
	p.ignitions[p.key.NamespacedName.String()] = ignition{pool: p.key.NamespacedName.String(), token: token, image: image}
	p.mu.Unlock()

	secret := &corev1.Secret{}
	at := types.NamespacedName{Namespace: namespace, Name: "user-data-" + p.key.Name + "-" + version}

	err = p.client.Get(ctx, at, secret)
	if err == nil {
		if bytes.Equal(secret.Data["value"], value) {
			return nil
		}

		secret.Data["value"] = value

		if err := p.client.Update(ctx, secret); err != nil {
			return fmt.Errorf("update user data: %w", err)
		}

		return nil
	}

	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get user data: %w", err)
	}

	secret = &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: at.Namespace, Name: at.Name, Annotations: map[string]string{annotationNodePool: p.key.NamespacedName.String()},
		},
		Data: map[string][]byte{"disableTemplating": []byte("dHJ1ZQ=="), "value": value},
	}
	if err := p.client.Create(ctx, secret); err != nil {
		return fmt.Errorf("make user data: %w", err)
	}

	return nil
}

// RotateIgnition has HyperShift give all user data another token, as it does several times a
// day.
func (s *Sim) RotateIgnition() {
	s.mu.Lock()
	s.rotations++
	s.mu.Unlock()

	s.all()
}
