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
	// cacheTimeout limits one connection attempt. A machine waits for a cache for the same time.
	cacheTimeout = 3 * time.Second
	// maxConcurrentDials is the maximum number of concurrent connection attempts.
	maxConcurrentDials = 16
)

// checkCaches opens a connection to each cache that a template names, and reports the caches that it cannot
// reach. It does not report a missing permission to list templates, because checkObjects reports that.
func (d *doctor) checkCaches(ctx context.Context) {
	templates := &v1alpha1.HypervisorMachineTemplateList{}
	if err := d.client.List(ctx, templates, client.InNamespace(d.namespace)); err != nil {
		if !apierrors.IsForbidden(err) && !apimeta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
			d.reportUnreadable("caches of templates", err)
		}

		return
	}

	dialErrors := dialCaches(ctx, templates.Items)

	for i := range templates.Items {
		template := &templates.Items[i]
		subject := fmt.Sprintf("caches of HypervisorMachineTemplate %s/%s", template.Namespace, template.Name)
		urls := cacheURLs(template)
		warningsBefore := d.report.Warnings

		for _, cache := range urls {
			if err := dialErrors[cache]; err != nil {
				d.report.addf(Warning, subject, "cannot connect to %s from here: %v: machines that cannot reach the cache run without it",
					cache, err)
			}
		}

		if len(urls) > 0 && d.report.Warnings == warningsBefore {
			d.report.addf(OK, subject, "%s",
				english.PluralWord(len(urls), "the cache is reachable", fmt.Sprintf("%d caches are reachable", len(urls))))
		}
	}
}

func cacheURLs(template *v1alpha1.HypervisorMachineTemplate) []v1alpha1.CacheURL {
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

// dialCaches opens a TCP connection to each cache of the templates and closes it again. It sends no data. The
// result has an entry for each cache, which is nil if the connection succeeded.
func dialCaches(ctx context.Context, templates []v1alpha1.HypervisorMachineTemplate) map[v1alpha1.CacheURL]error {
	var all []v1alpha1.CacheURL
	for i := range templates {
		all = append(all, cacheURLs(&templates[i])...)
	}

	slices.Sort(all)
	all = slices.Compact(all)
	errs := make([]error, len(all))

	var group errgroup.Group

	group.SetLimit(maxConcurrentDials)

	for i, cache := range all {
		group.Go(func() error {
			errs[i] = checkReachable(ctx, string(cache))

			return nil
		})
	}

	_ = group.Wait() // always nil: errs has the error of each cache

	out := make(map[v1alpha1.CacheURL]error, len(all))
	for i, cache := range all {
		out[cache] = errs[i]
	}

	return out
}

func checkReachable(ctx context.Context, cache string) error {
	target, err := url.Parse(cache)
	if err != nil {
		return fmt.Errorf("parse URL: %w", err)
	}

	port := map[string]string{"http": "80", "https": "443"}[target.Scheme]
	dialer := net.Dialer{Timeout: cacheTimeout}

	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(target.Hostname(), cmp.Or(target.Port(), port)))
	if err != nil {
		return err
	}

	_ = conn.Close()

	return nil
}
