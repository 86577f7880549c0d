"""Keeps manifests of older releases working on a cluster: conversion webhook of ``v1beta1``, twins of older kinds."""
