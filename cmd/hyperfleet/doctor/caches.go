// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"time"

	"github.com/dustin/go-humanize/english"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

const (
	// cacheTimeout is how long a machine waits for a cache, too.
	cacheTimeout = 3 * time.Second
	// cachesAtOnce bounds the connections that are open side by side.
	cachesAtOnce = 16
)

// caches connects to the caches that templates name. Who may not list templates is told so
// with the other objects.
func (d *doctor) caches(ctx context.Context) {
	templates := &v1alpha1.HypervisorMachineTemplateList{}
	if err := d.client.List(ctx, templates, client.InNamespace(d.namespace)); err != nil {
		if !apierrors.IsForbidden(err) && !apimeta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
			d.unseen("caches of templates", err)
		}

		return
	}

	down := dial(ctx, templates.Items)

	for i := range templates.Items {
		template := &templates.Items[i]
		subject := fmt.Sprintf("caches of HypervisorMachineTemplate %s/%s", template.Namespace, template.Name)
		urls := cachesOf(template)
		before := d.report.Warnings

		for _, cache := range urls {
			if err := down[cache]; err != nil {
				d.report.addf(Warning, subject, "%s does not answer here: %v: machines that cannot reach it go without it", cache, err)
			}
		}

		if len(urls) > 0 && d.report.Warnings == before {
			d.report.addf(Fine, subject, "%s", english.PluralWord(len(urls), "it answers", fmt.Sprintf("%d answer", len(urls))))
		}
	}
}

func cachesOf(template *v1alpha1.HypervisorMachineTemplate) []v1alpha1.CacheURL {
	cache := template.Spec.Cache
	if cache == nil {
		return nil
	}

	urls := slices.Clone(cache.RegistryMirrors)
	if cache.ActionsCacheURL != "" {
		urls = append(urls, cache.ActionsCacheURL)
	}

	return urls
}

// dial opens a connection to each cache, and says why one cannot be had. Nothing is sent.
func dial(ctx context.Context, templates []v1alpha1.HypervisorMachineTemplate) map[v1alpha1.CacheURL]error {
	var all []v1alpha1.CacheURL
	for i := range templates {
		all = append(all, cachesOf(&templates[i])...)
	}

	slices.Sort(all)
	all = slices.Compact(all)
	errs := make([]error, len(all))

	var group errgroup.Group

	group.SetLimit(cachesAtOnce)

	for i, cache := range all {
		group.Go(func() error {
			errs[i] = answers(ctx, string(cache))

			return nil
		})
	}

	_ = group.Wait() // each has its own error

	out := make(map[v1alpha1.CacheURL]error, len(all))
	for i, cache := range all {
		out[cache] = errs[i]
	}

	return out
}

func answers(ctx context.Context, cache string) error {
	at, err := url.Parse(cache)
	if err != nil {
		return fmt.Errorf("read the URL: %w", err)
	}

	port := map[string]string{"http": "80", "https": "443"}[at.Scheme]
	dialer := net.Dialer{Timeout: cacheTimeout}

	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(at.Hostname(), cmp.Or(at.Port(), port)))
	if err != nil {
		return err
	}

	_ = conn.Close()

	return nil
}
